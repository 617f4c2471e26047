"""Products with operands in 8 bits in both passes: the MLP (pull requests 344 and 349) and QKV (344), with the scales
that they keep between steps."""

import copy
from dataclasses import dataclass

import torch

from .numbers import e4m3, e5m2, quantised

E4M3_LARGEST, TINY = 448.0, 1e-12
FORMATS = {"e4m3": (e4m3, 448.0), "e5m2": (e5m2, 57344.0)}


@dataclass(frozen=True)
class Product:
    gradient: str  # e4m3 or e5m2
    scale_x: float | None  # None: delayed, from the step before
    scale_g: float | None  # None: of this gradient
    delayed_weights: bool
    margin: float = 1.25  # of delayed inputs and of hidden units


# Pull request 349's MLP and pull request 344's QKV, where norms never saturate; pull request 344's MLP.
FIXED_MLP = Product("e5m2", 2.0**-4, 2.0**-6, True, 1.03)
DELAYED_MLP = Product("e4m3", None, None, False)
FIXED_QKV = Product("e4m3", 2.0**-4, 1 / 448, False)


class State:
    """One scale for each layer. What a step finds serves the next one; a maximum of 0 leaves the scale as it is."""

    first_input, first_hidden, first_d_hidden = 8 / 448, 16 / 448, 2.0**-6
    d_hidden_margin, weight_margin, exact_copies = 1.25, 1.12, 16

    def __init__(self, c, product, weights):
        """weights: name of a matrix -> function of the layer, None where it has none."""
        self.product, self.weights, self.layers = product, weights, range(c.layers)
        self.x = [self.first_input if product.scale_x is None else product.scale_x] * c.layers
        self.h, self.d_hidden = [self.first_hidden] * c.layers, [self.first_d_hidden] * c.layers
        self.copies = 0
        self.last = {}
        self.forget()
        self.copy_weights()

    def forget(self):
        self.found = {name: [0.0] * len(self.layers) for name in ("x", "h", "d_hidden")}

    def find(self, name, i, value):
        self.found[name][i] = max(self.found[name][i], value.abs().max().item())

    def copy_weights(self):
        """The scales of the weights as they are now."""
        delayed = self.product.delayed_weights and self.copies >= self.exact_copies
        self.w = {}
        for name, matrix in self.weights.items():
            for i in self.layers:
                if matrix(i) is None:
                    continue
                now = max(matrix(i).detach().abs().max().item(), TINY)
                largest = self.last[name, i] * self.weight_margin if delayed else now
                self.w[name, i] = largest / E4M3_LARGEST
                self.last[name, i] = now
        self.copies += 1

    def after_update(self):
        largest_of_gradient = FORMATS[self.product.gradient][1]
        for name, scales, factor in (("x", self.x, self.product.margin / E4M3_LARGEST),
                                     ("h", self.h, self.product.margin / E4M3_LARGEST),
                                     ("d_hidden", self.d_hidden, self.d_hidden_margin / largest_of_gradient)):
            if name == "x" and self.product.scale_x is not None:
                continue
            for i, value in enumerate(self.found[name]):
                if value > 0:
                    scales[i] = value * factor
        self.forget()
        self.copy_weights()


class Products:
    """The states of the products that the config quantises; None for the others."""

    def __init__(self, c, p):
        self.mlp = self.qkv = None
        if c.fp8_mlp_product is not None:
            # W2 as [hidden, d].
            self.mlp = State(c, c.fp8_mlp_product, {name: lambda i, name=name: p[f"block.{i}.{name}"]
                                                    for name in ("mlp_in", "mlp_out")})
        if c.fp8_qkv_product is not None:
            self.qkv = State(c, c.fp8_qkv_product, {"qkv": lambda i: p.get(f"block.{i}.qkv")})

    def after_update(self, _step):
        for state in (self.mlp, self.qkv):
            if state is not None:
                state.after_update()

    def kept(self):
        """What a pass may change."""
        return [copy.deepcopy(state.found) if state else None for state in (self.mlp, self.qkv)]

    def put_back(self, kept):
        for state, found in zip((self.mlp, self.qkv), kept):
            if state is not None:
                state.found = found


def to_8_bits(x, scale, form="e4m3"):
    """The 8-bit numbers themselves, clipped at the largest."""
    rounding, largest = FORMATS[form]
    return quantised((x / scale).clamp(-largest, largest), rounding)


def gradient_scale(product, g):
    if product.scale_g is not None:
        return product.scale_g
    return max(g.abs().max().item(), TINY) / FORMATS[product.gradient][1]


class Mlp(torch.autograd.Function):
    """y = relu(n w1^T)^2 w2, w1 [hidden, d], w2 [hidden, d]. Neither h nor dz enters a product unrounded."""

    @staticmethod
    def forward(ctx, n, w1, w2, state, i):
        s1, s2 = state.w["mlp_in", i], state.w["mlp_out", i]
        sx, sh = state.x[i], state.h[i]
        xq, w1q, w2q = to_8_bits(n, sx), to_8_bits(w1, s1), to_8_bits(w2, s2)
        h = torch.relu(xq @ w1q.T * (sx * s1)).square()
        hq = to_8_bits(h, sh)
        state.find("x", i, n)
        state.find("h", i, h)
        ctx.save_for_backward(xq, w1q, w2q, hq)
        ctx.own = state, i, sx, s1, sh, s2
        return hq @ w2q * (sh * s2)

    @staticmethod
    def backward(ctx, dy):
        xq, w1q, w2q, hq = ctx.saved_tensors
        state, i, sx, s1, sh, s2 = ctx.own
        form, sd = state.product.gradient, state.d_hidden[i]
        sg = gradient_scale(state.product, dy)
        gq = to_8_bits(dy, sg, form)
        dw2 = hq.T @ gq * (sh * sg)
        dz = 2 * (gq @ w2q.T) * (sg * s2) * (hq * sh).sqrt()
        state.find("d_hidden", i, dz)
        dzq = to_8_bits(dz, sd, form)
        return dzq @ w1q * (sd * s1), dzq.T @ xq * (sd * sx), dw2, None, None


class Qkv(torch.autograd.Function):
    """factor n w^T; the factor is in the scale of w, and belongs to no rounded operand. Its own gradient is of the
    product as it is."""

    @staticmethod
    def forward(ctx, n, w, factor, state, i):
        sx, sw = state.x[i], state.w["qkv", i]
        xq, wq = to_8_bits(n, sx), to_8_bits(w, sw)
        product = xq @ wq.T * (sx * sw)
        state.find("x", i, n)
        ctx.save_for_backward(xq, wq, factor, product)
        ctx.own = state, sx, sw
        return factor * product

    @staticmethod
    def backward(ctx, g):
        xq, wq, factor, product = ctx.saved_tensors
        state, sx, sw = ctx.own
        sg = gradient_scale(state.product, g)
        gq = to_8_bits(g, sg, state.product.gradient)
        return gq @ wq * (sg * sw * factor), gq.T @ xq * (sg * sx * factor), (g * product).sum(), None, None
