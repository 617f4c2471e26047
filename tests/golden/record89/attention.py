"""Attention with dense masks: rotary tables, paired heads, key offset, DC, XSA. Shapes are [T, H, D]."""

import math

import torch

from .fp8 import Qkv
from .numbers import rms_norm, rounded, shifted


def rotary_tables(c, rotary, positions, dtype, pairs):
    """cos and sin [T, pairs], the turning ones first."""
    f = torch.tensor(rotary.frequencies + (0.0,) * (pairs - len(rotary.frequencies)), dtype=torch.float64)
    angle = torch.outer(positions.double(), f)
    return rounded(c, angle.cos()).to(dtype), rounded(c, angle.sin()).to(dtype)


def rotate(c, x, cos, sin):
    """x [T, H, D]; cos and sin [T, 1 or H, D/2]."""
    if c.rotary_pairs == "adjacent":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos + b * sin, b * cos - a * sin], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1)


def still_dims(c, size, rotary):
    """Mask [size] of the dims that no angle turns."""
    dim = torch.arange(size)
    pair = dim // 2 if c.rotary_pairs == "adjacent" else dim % (size // 2)
    return pair >= len(rotary.frequencies)


def live_dims(c, i):
    """Of the D dims of a head, those that Q and K of layer i have: the first pairs."""
    size = c.head_dim if c.qk_dims is None else c.qk_dims[i]
    if c.rotary_pairs == "adjacent":
        return torch.arange(size)
    return torch.cat([torch.arange(size // 2), c.head_dim // 2 + torch.arange(size // 2)])


def seen(document, window):
    """[T, T]: query (row) sees key (column) of its document, at most `window` tokens before it."""
    t = torch.arange(document.numel())
    distance = t[:, None] - t[None, :]
    return (distance >= 0) & (distance <= window) & (document[:, None] == document[None, :])


def probabilities(q, k, scale, mask):
    """[H, T, T]"""
    score = scale * torch.einsum("thd,shd->hts", q, k)
    return score.masked_fill(~mask, -math.inf).softmax(-1)


def softmax_attention(q, k, v, scale, mask):
    return torch.einsum("hts,shd->thd", probabilities(q, k, scale, mask), v)


def paired_attention(c, q, k, v, rotary, document, window):
    """Head h of token t is row 2t + h // (H/2) of virtual head h mod (H/2), at rotary position 2t + h mod 2."""
    length, half = q.shape[0], c.heads // 2
    position = 2 * torch.arange(length)[:, None] + torch.arange(c.heads)[None, :] % 2
    tables = rotary_tables(c, rotary, position.flatten(), q.dtype, q.shape[-1] // 2)
    cos, sin = (table.view(length, c.heads, -1) for table in tables)
    q, k = rotate(c, q, cos, sin), rotate(c, k, cos, sin)
    rows = [x.reshape(2 * length, half, x.shape[-1]) for x in (q, k, v)]
    y = softmax_attention(*rows, rotary.scale, seen(document.repeat_interleave(2), window))
    return y.reshape(length, c.heads, c.head_dim)


def dc_correction(c, q, k, v, w1, w2, scale, document):
    """What dynamically composed heads add to y; w1, w2 [T, H]. The window counts keys, the query's own included."""
    w1 = rms_norm(w1, c.dc_eps)
    p = probabilities(q, k, scale, seen(document, c.dc_window - 1))
    mixed = torch.einsum("th,hts->ts", w1, p)
    return torch.einsum("th,ts,shd->thd", w2, mixed, v)


def without_value(y, v, alpha):
    """XSA: takes from y, per head, the share tanh(alpha) of its part along v; alpha [T, H]."""
    along = (y * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True).clamp_min(1e-8)
    return y - torch.tanh(alpha).unsqueeze(-1) * along * v


def attention(c, i, n, weights, aux, gates, rotary, window, document, fp8=None):
    """Output [T, d] of layer i for the normed input n; aux [T, H, D] or None; gates: kind -> [T, H]; fp8: the
    state of the projection's scales where it has operands in 8 bits."""
    length, d = n.shape
    factors = weights["attention_factors"]
    if fp8 is None:
        qkv = n @ (factors[0] * weights["qkv"]).T
    else:
        qkv = Qkv.apply(n, weights["qkv"], factors[0], fp8, i)
    q, k, v = (x.reshape(length, c.heads, c.head_dim) for x in qkv.split(d, dim=-1))
    q, k = (rms_norm(x[..., live_dims(c, i)], c.norm_eps) for x in (q, k))
    if aux is not None:
        v = v + aux
    if i in c.paired_layers:
        y = paired_attention(c, q, k, v, rotary, document, window)
    else:
        tables = rotary_tables(c, rotary, torch.arange(length), n.dtype, q.shape[-1] // 2)
        cos, sin = (x[:, None] for x in tables)
        q, k = rotate(c, q, cos, sin), rotate(c, k, cos, sin)
        if c.key_offset and i in c.long_layers:
            k = torch.where(still_dims(c, k.shape[-1], rotary), shifted(k), k)
        y = softmax_attention(q, k, v, rotary.scale, seen(document, window))
        if i in c.dc_layers:
            y = y + dc_correction(c, q, k, v, gates["dc_w1"], gates["dc_w2"], rotary.scale, document)
    if i in c.xsa_layers:
        y = without_value(y, v, gates["xsa"])
    if i in c.attention_gate_layers:
        y = gates["attention_gate"].unsqueeze(-1) * y
    return y.reshape(length, d) @ (factors[1] * weights["attention_out"]).T
