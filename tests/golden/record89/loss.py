"""Head and loss: softcap, several weighted targets, prefix targets, and the gradient that training uses."""

import torch

from .numbers import e4m3, e5m2, quantised, rounded

CAP, SHIFT, WIDTH = 23.0, 5.0, 7.5


class Fp8Head(torch.autograd.Function):
    """z = bf16(e4m3(x sx) e4m3(w sw)^T / (sx sw)), with the gradient of z in e5m2, which is that of a sum of tokens."""

    @staticmethod
    def forward(ctx, x, w, sx, sw, sg):
        xq, wq = quantised(x * sx, e4m3), quantised(w * sw, e4m3)
        ctx.save_for_backward(xq, wq)
        ctx.scales = sx, sw, sg
        return (xq @ wq.T / (sx * sw)).bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        xq, wq = ctx.saved_tensors
        sx, sw, sg = ctx.scales
        gq = quantised(g * sg, e5m2)
        return gq @ wq / (sg * sw), gq.T @ xq / (sg * sx), None, None, None


def softcap(c, z):
    """(u, logits); u is the quantity that `rounding` rounds."""
    if c.softcap == "tanh":
        u = torch.tanh(z / 15)
        return u, 15 * u
    u = rounded(c, torch.sigmoid((z + SHIFT) / WIDTH))
    return u, CAP * u


def softcap_slope(c, u):
    return 1 - u.square() if c.softcap == "tanh" else CAP / WIDTH * u * (1 - u)


def target_mass(targets, weights, prefixes, prefix_weight, columns, dtype):
    """[T, columns]: the weights that fall on each token; targets behind the sequence's end are left out."""
    length = targets.numel()
    mass = torch.zeros(length, columns, dtype=dtype)
    for k, weight in enumerate(weights):
        mass[torch.arange(length - k), targets[k:]] += weight
    rows = torch.nonzero(prefixes >= 0).flatten()
    mass[rows, prefixes[rows]] += prefix_weight
    return mass


def only(logits, chosen):
    """The logits, those of columns that are not chosen so low that they have no part; chosen None: all are."""
    return logits if chosen is None else logits.masked_fill(~chosen, -1e30)


def losses(logits, mass):
    """Per position [T]: the sum of weight (logsumexp - logit) over its targets."""
    return mass.sum(-1) * logits.logsumexp(-1) - (mass * logits).sum(-1)


def pull(weights, prefixes, prefix_weight, dtype):
    """S_i of every position [T]: all weights, also in the last rows, where some targets are missing."""
    return torch.full(prefixes.shape, float(sum(weights)), dtype=dtype) + prefix_weight * (prefixes >= 0).to(dtype)


class SurplusLoss(torch.autograd.Function):
    """The losses, with the gradient of z that counts the weights of missing targets."""

    @staticmethod
    def forward(ctx, z, c, mass, s, chosen):
        u, logits = softcap(c, z)
        logits = only(logits, chosen)
        ctx.c = c
        ctx.save_for_backward(u, logits, mass, s)
        return losses(logits, mass)

    @staticmethod
    def backward(ctx, g):
        u, logits, mass, s = ctx.saved_tensors
        dz = softcap_slope(ctx.c, u) * (s[:, None] * logits.softmax(-1) - mass)
        return g[:, None] * dz, None, None, None, None


def token_losses(c, z, targets, weights, prefixes, prefix_weight, chosen=None):
    """[T], neither divided by the number of tokens nor by the weights. chosen: the columns that the softmax covers;
    prefixes beyond them count as none."""
    if chosen is not None:
        prefixes = torch.where((prefixes >= 0) & chosen[prefixes], prefixes, -1)
    mass = target_mass(targets, weights, prefixes, prefix_weight, z.shape[1], z.dtype)
    if not c.surplus_weights:
        return losses(only(softcap(c, z)[1], chosen), mass)
    return SurplusLoss.apply(z, c, mass, pull(weights, prefixes, prefix_weight, z.dtype), chosen)


def head_product(c, x, w, training):
    if c.fp8_head and training:
        return Fp8Head.apply(x, w, c.head_scale_x, c.head_scale_w, c.head_scale_g)
    return x @ w.T
