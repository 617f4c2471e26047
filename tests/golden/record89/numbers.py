"""Number formats and small functions that several parts share."""

import torch

from reference import e4m3, e5m2, rms_norm  # noqa: F401


def bf16(x):
    """The nearest bf16 value; the gradient passes unchanged."""
    return x + (x.detach().bfloat16().to(x.dtype) - x.detach())


def rounded(c, x):
    return bf16(x) if c.rounding else x


def quantised(x, form):
    """`form` is e4m3 or e5m2; the result has the type of x."""
    return form(x).to(x.dtype)


def shifted(x):
    """Row t holds row t - 1, row 0 its own."""
    return torch.cat([x[:1], x[:-1]])
