"""W2 relu(W1 x)^2 and its FP8 form with the scales that it keeps between steps."""

import torch

from .fp8 import Mlp, Products
from .numbers import e4m3, quantised, rounded

LARGEST, TINY = 448.0, 1e-12


class Fp8State:
    """Scales of the layers. activation[r]: of sequence r of a step, as each rank of the record keeps its own; with
    fp8_mlp_shared all sequences have that of the largest h among those of the step before."""

    headroom_activation, headroom_weight = 1.8, 1.12

    def __init__(self, c, parameters):
        self.c, self.p = c, parameters
        self.activation = [[1.0] * c.layers for _ in range(c.sequences)]
        self.step_largest = [0.0] * c.layers
        self.weight = [self.present(i) for i in range(c.layers)]
        self.next_weight = [self.following(i) for i in range(c.layers)]

    def largest(self, i):
        return self.p[f"block.{i}.mlp_out"].detach().abs().max().clamp_min(TINY)

    def present(self, i):
        return rounded(self.c, self.largest(i) / LARGEST).item()

    def following(self, i):
        return (self.largest(i) * self.headroom_weight / LARGEST).item()

    def after_update(self, step):
        """The weights of update `step` are in place; next step quantises them with self.weight."""
        for i in range(self.c.layers):
            self.weight[i] = self.present(i) if step < self.c.mlp_out_present_scales else self.next_weight[i]
            self.next_weight[i] = self.following(i)
            if self.c.fp8_mlp_shared:
                for scales in self.activation:
                    scales[i] = self.activation_scale(self.step_largest[i])
                self.step_largest[i] = 0.0

    def kept(self):
        """What a forward pass of the first sequence may change."""
        return self.activation[0].copy()

    def put_back(self, kept):
        self.activation[0] = kept

    def activation_scale(self, largest):
        return max(largest, TINY) * self.headroom_activation / LARGEST

    def record(self, sequence, i, largest):
        if self.c.fp8_mlp_shared:
            self.step_largest[i] = max(self.step_largest[i], largest)
        else:
            self.activation[sequence][i] = self.activation_scale(largest)


def hidden_units(z):
    return torch.relu(z).square()


class Fp8Mlp(torch.autograd.Function):
    """Both products forward in e4m3; backward as if they had not been rounded, through the h that was."""

    @staticmethod
    def forward(ctx, n, w1, w2, c, sigma, tau):
        top = n.abs().max().clamp_min(TINY)
        xq = quantised(n * (LARGEST / top), e4m3)
        s = rounded(c, w1.abs().max().clamp_min(TINY) / LARGEST)
        wq = quantised(rounded(c, w1 / s), e4m3)
        z = rounded(c, xq @ wq.T * (s * top / LARGEST))
        h = rounded(c, hidden_units(z))
        hq = quantised((h * (1 / sigma)).clamp_max(LARGEST), e4m3)
        w2q = quantised((w2 / tau).clamp(-LARGEST, LARGEST), e4m3)
        ctx.save_for_backward(n, w1, w2, h)
        ctx.mark_non_differentiable(h)
        return rounded(c, hq @ w2q * (sigma * tau)), h

    @staticmethod
    def backward(ctx, dy, _):
        n, w1, w2, h = ctx.saved_tensors
        dz = 2 * (dy @ w2.T) * h.sqrt()
        return dz @ w1, dz.T @ n, h.T @ dy, None, None, None


def mlp(c, i, n, p, fp8=None, sequence=0):
    """fp8: the state where training uses it, else None."""
    w1, w2 = p[f"block.{i}.mlp_in"], p[f"block.{i}.mlp_out"]
    w2 = w2 if c.mlp_out_transposed else w2.T
    if isinstance(fp8, Products):
        if fp8.mlp is not None:
            return Mlp.apply(n, w1, w2, fp8.mlp, i)
        fp8 = None
    if fp8 is None:
        return hidden_units(n @ w1.T) @ w2
    y, h = Fp8Mlp.apply(n, w1, w2, c, fp8.activation[sequence][i], fp8.weight[i])
    fp8.record(sequence, i, h.max().item())
    return y
