"""NorMuon with cautious decay for the matrices, Adam with a period for everything else, tied embedding and head."""

import math

import torch

from reference import newton_schulz

from . import schedule
from .numbers import bf16
from .parameters import groups, live_rows

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SIX_MAPS = (
    (4.447393659248992, -8.6592834371539, 4.484453950130224),
    (3.0003381342927278, -3.180035633097396, 0.959298544318381),
    (3.5997737315685896, -5.129961939372116, 1.94624091228252),
    (3.238755176943844, -3.988313284248892, 1.4073635628857994),
    (2.558664852492382, -2.5626431459988033, 0.9815933969681315),
    (2.38665846260798, -2.223181615281231, 0.835162681686761),
)


def six_maps(x):
    """Approximate orthogonal factor of x [rows, cols], without rounding. The first map takes the scaled product."""
    tall = x.shape[0] > x.shape[1]
    gram = x.T @ x if tall else x @ x.T
    scale = 1.02 * gram.trace().sqrt() + 1e-6
    x, gram = x / scale, gram / scale**2
    for a, b, c in SIX_MAPS:
        mixed = b * gram + c * (gram @ gram)
        x = a * x + (x @ mixed if tall else mixed @ x)
        gram = x.T @ x if tall else x @ x.T
    return x


def polar_express(x, rounding=False):
    """Approximate orthogonal factor of x [rows, cols]; with rounding, every result is a bf16 value."""
    keep = bf16 if rounding else lambda value: value
    x = keep(x)
    x = keep(x / (x.norm() * 1.02 + 1e-6))
    tall = x.shape[0] > x.shape[1]
    for a, b, c in POLAR_EXPRESS:
        gram = keep(x.T @ x if tall else x @ x.T)
        mixed = keep(b * gram + c * (gram @ gram))
        x = keep(a * x + (x @ mixed if tall else mixed @ x))
    return x


def normalised(x, second, beta, rounding=False):
    """x with its rows' (or, where wide, columns') mean squares evened out, at the same norm; updates `second`."""
    dim = 1 if x.shape[0] >= x.shape[1] else 0
    mean = x.square().mean(dim, keepdim=True)
    second.mul_(beta).add_(mean, alpha=1 - beta)
    s = second.clamp_min(1e-10).rsqrt()
    norm = (mean.sum() * x.shape[dim]).sqrt()
    scaled = (mean * x.shape[dim] * s.square()).sum().sqrt()
    factor = s * (norm / scaled.clamp_min(1e-10))
    return bf16(x * bf16(factor)) if rounding else x * factor


class Unit:
    """Rows of a matrix that are orthogonalised apart."""

    def __init__(self, c, name, matrix, rows, factor):
        self.c, self.name, self.rows = c, name, rows
        part = matrix.detach()[rows]  # rows: a slice or their numbers
        self.factor = factor * math.sqrt(max(1.0, part.shape[0] / part.shape[1]))
        self.momentum, self.slow = torch.zeros_like(part), torch.zeros_like(part)
        tall = part.shape[0] >= part.shape[1]
        self.second = part.new_zeros((part.shape[0], 1) if tall else (1, part.shape[1]))

    def momentum_of(self, g, step):
        """What Nesterov's step takes as the momentum, once g is part of it."""
        c, momentum = self.c, schedule.momentum(self.c, step)
        if c.slow_momentum is None:
            return self.momentum.lerp_(g, 1 - momentum)
        mixes = step >= c.mix_from
        self.momentum.lerp_(g, 1 - (c.fast_momentum if mixes else momentum))
        self.slow.lerp_(g, 1 - c.slow_momentum)
        return self.slow.lerp(self.momentum, c.momentum_mix) if mixes else self.momentum

    def update(self, matrix, gradient, lr_factor, step):
        c, g = self.c, gradient[self.rows]
        u = g.lerp(self.momentum_of(g, step), schedule.momentum(c, step))
        if c.orthogonalisation == "six_maps":
            x = six_maps(u)
        elif c.orthogonalisation == "polar_express":
            x = polar_express(u, c.rounding)
        else:
            x = newton_schulz(u.unsqueeze(0)).squeeze(0)
        if c.second_moment:
            x = normalised(x, self.second, c.second_moment_beta, c.rounding)
        p = matrix[self.rows]
        lr, decay = c.matrix_lr * lr_factor * self.factor, c.matrix_decay * c.matrix_lr * lr_factor
        decayed = p * (x * p >= 0).to(p.dtype) if c.cautious_decay else p
        matrix[self.rows] = p - lr * decay * decayed - lr * x


def units(c, name, matrix):
    """qkv: blocks of adjacent heads of W_q, then of W_k, then W_v whole, of live rows. Any other matrix is one unit."""
    rows = matrix.shape[0]
    if not name.endswith(".qkv"):
        return [Unit(c, name, matrix, slice(0, rows), c.mlp_out_factor if name.endswith(".mlp_out") else 1)]
    block = c.heads_per_block * c.head_dim
    cuts = [*range(0, 2 * c.width, block), 2 * c.width, rows]
    live = live_rows(c, name)
    parts = [slice(a, b) if live[a:b].all() else a + torch.from_numpy(live[a:b]).nonzero().flatten()
             for a, b in zip(cuts, cuts[1:])]
    return [Unit(c, name, matrix, part, 1) for part in parts]


class Adam:
    """One tensor."""

    def __init__(self, c, parameter, group):
        self.c, self.group, self.count = c, c.groups[group], 0
        self.rounds_moments = group in c.bf16_moments
        self.m, self.v = torch.zeros_like(parameter), torch.zeros_like(parameter)

    def update(self, p, g, lr_factor, n=1):
        """n: updates of the early period for which this one stands."""
        c, group = self.c, self.group
        self.count += 1
        beta1, beta2 = group.beta1**n, group.beta2**n
        self.m.mul_(beta1).add_(g, alpha=1 - beta1)
        self.v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        lr = c.adam_lr * group.factor * lr_factor
        correction = math.sqrt(1 - beta2**self.count) / (1 - beta1**self.count)
        u = lr * correction * self.m / (self.v.sqrt() + c.adam_eps)
        decay = lr * lr * c.adam_decay * n * group.decay
        kept = p * (u * p > 0).to(p.dtype) if c.cautious_decay else p
        p.sub_(u + decay * kept)
        if self.rounds_moments:
            self.m.copy_(bf16(self.m))
            self.v.copy_(bf16(self.v))

    def copy_state(self, other):
        self.count = other.count
        self.m.copy_(other.m)
        self.v.copy_(other.v)


class Optimizer:
    FP32 = ("factor", "post", "residual", "scalar")  # these, and gate_net.scale, are no bf16 parameters of the record

    def __init__(self, c, parameters):
        self.c, self.p = c, parameters
        self.groups = groups(c)
        self.units = [unit for name, p in parameters.items() if self.groups[name] == "matrix"
                      for unit in units(c, name, p)]
        self.adam = {name: Adam(c, p, self.groups[name]) for name, p in parameters.items()
                     if self.groups[name] != "matrix"}
        self.sums = {}  # gradients since the last Adam update
        self.tied = c.tied
        for name in self.adam:
            self.round_master(name)

    @torch.no_grad()
    def round_master(self, name):
        if self.groups[name] in self.c.bf16_masters:
            self.p[name].copy_(bf16(self.p[name]))

    @torch.no_grad()
    def step(self, step, gradients):
        """gradients: name -> G of this step."""
        c = self.c
        factor = schedule.lr_factor(c, step)
        for unit in self.units:
            unit.update(self.p[unit.name], gradients[unit.name], factor, step)
        for name in self.adam:
            self.sums[name] = self.sums[name] + gradients[name] if name in self.sums else gradients[name].clone()
        if schedule.adam_step(c, step):
            self.update_tables(factor, step)
            if step == schedule.split_step(c):
                self.adam["embedding"].copy_state(self.adam["head"])
                self.tied = False

    def update_tables(self, factor, step):
        if self.tied:
            self.sums["head"] += self.sums.pop("embedding")
        due = [name for name in self.sums if schedule.adam_step(self.c, step, self.groups[name])]
        for name in due:
            n = self.c.late_period // self.c.adam_period if schedule.late(self.c, step, self.groups[name]) else 1
            self.adam[name].update(self.p[name], self.sums.pop(name), factor, n)
            if self.c.rounding and self.groups[name] not in self.FP32 and name != "gate_net.scale":
                self.p[name].copy_(bf16(self.p[name]))
            self.round_master(name)
        if self.tied:
            self.p["embedding"].copy_(self.p["head"])
