"""The update rules of reference_medium.py: NorMuon of some rows, Adam of a tensor."""

import math

import torch
from reference_plain import polar


class Muon:
    """Rows of a matrix that are orthogonalised together. `by_row`: whether the second moment is of rows."""

    def __init__(self, rows, part, by_row):
        self.rows, self.dim = rows, 1 if by_row else 0
        self.momentum = torch.zeros_like(part)
        self.second = torch.zeros_like(part.sum(self.dim, keepdim=True))

    def update(self, o, w, gradient, m, rate, factor):
        """w less the orthogonalised momentum times `rate` (with the shape's factor) and the cautious decay."""
        g = gradient[self.rows]
        self.momentum.mul_(m).add_(g, alpha=1 - m)
        x = polar(o, (1 - m) * g + m * self.momentum)
        if o["normuon_beta"]:
            x = self.evened(x, o["normuon_beta"])
        part = w[self.rows]
        decay = rate * o["muon_decay"] * o["muon_lr"] * factor
        w[self.rows] = part - rate * x - decay * part * (x * part >= 0)

    def evened(self, x, beta):
        """NorMuon: x with the mean squares of its lines evened out, at the same norm."""
        mean = x.square().mean(self.dim, keepdim=True)
        self.second.mul_(beta).add_(mean, alpha=1 - beta)
        x_even = x / self.second.clamp(min=1e-10).sqrt()
        return x_even * x.norm() / x_even.norm().clamp(min=1e-10)


class Adam:
    def __init__(self, w):
        self.m, self.v, self.count = torch.zeros_like(w), torch.zeros_like(w), 0

    def update(self, o, w, g, rate, group):
        self.count += 1
        beta1, beta2 = group["beta1"], group["beta2"]
        self.m.mul_(beta1).add_(g, alpha=1 - beta1)
        self.v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = math.sqrt(1 - beta2**self.count)
        eps = o["adam_eps"] if o["adam_epsilon_hat"] else o["adam_eps"] * root
        u = rate * root / (1 - beta1**self.count) * self.m / (self.v.sqrt() + eps)
        w.sub_(u + rate * rate * group["decay"] * w * (u * w > 0))

    def copy(self):
        other = Adam(self.m)
        other.m, other.v, other.count = self.m.clone(), self.v.clone(), self.count
        return other
