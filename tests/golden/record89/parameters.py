"""The parameter table: name, shape, optimizer group, start. Initial values come from the streams of reference.py."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from reference import stream_key, uniforms

from .attention import live_dims


@dataclass(frozen=True)
class Row:
    name: str
    shape: tuple
    group: str  # "matrix", or an entry of Config.groups
    start: object  # "normal", "uniform" with `bound` as standard deviation or bound; or numbers
    bound: float = 0.0


def uniform(name, shape, group, bound):
    return Row(name, shape, group, "uniform", bound)


def has_attention(c, layer):
    return layer not in c.layers_without_attention


def is_mudd_layer(c, layer):
    return c.mudd != "off" and layer == c.layers - 1


# ---------------------------------------------------------------- coefficients

@dataclass(frozen=True)
class Coefficient:
    """`count` numbers a token; several layers may have coefficients of one kind."""
    kind: str
    layer: int
    count: int
    start: float


def gate_layout(c, net):
    """Coefficients of gate net 0 or 1, in the order of its outputs."""
    mine = [i for i in range(c.layers) if (i >= c.gate_net_split) == bool(net)]
    layout = [Coefficient("xsa", i, c.heads, 0.0) for i in mine if i in c.xsa_layers]
    layout += [Coefficient("attention_gate", i, c.heads, 0.25) for i in mine if i in c.attention_gate_layers]
    for i in mine:
        if has_attention(c, i) and not is_mudd_layer(c, i):
            layout += [Coefficient("x0", i, 1, 0.0)] * c.x0_injection + [Coefficient("bigram", i, 1, 0.05)] * c.bigram
    if c.skip is not None and c.skip[1] in mine:
        layout.append(Coefficient("skip", c.skip[1], 1, 0.5))
    for i in mine:
        if i in c.dc_layers:
            layout += [Coefficient("dc_w1", i, c.heads, 1.0), Coefficient("dc_w2", i, c.heads, 0.0)]
    return layout


def mudd_layout(c, net):
    """m0..m13 before the last layer, mu0..mu4 behind it. What a switch turns off keeps its place."""
    r = c.residual_start
    starts = [0, 0, 0, 0, 0, 0, 2, 2, r, 1, 0, 0.05, r, 1] if net == 0 else [0, -c.mudd_backout, 0, 0, 0]
    return [Coefficient("m" if net == 0 else "mu", j, 1, float(start)) for j, start in enumerate(starts)]


def net_rows(c, name, layout, mode, scale, group, bias_group):
    """A net gives scale (B2 gelu(B1 u) + bias); "static" has the bias alone, "constant" has no parameters."""
    outputs = sum(coefficient.count for coefficient in layout)
    if mode in ("constant", "scalars") or outputs == 0:
        return []
    bias = [k.start / scale for k in layout for _ in range(k.count)]
    rows = [Row(f"{name}.bias", (outputs,), bias_group, bias)]
    if mode == "net":
        rows.insert(0, uniform(f"{name}.in", (c.net_hidden, c.width), group, 1 / math.sqrt(c.width)))
        rows.insert(1, Row(f"{name}.out", (outputs, c.net_hidden), group, [0.0]))
    return rows


# ---------------------------------------------------------------- table

def block_rows(c, i):
    d, hidden = c.width, c.hidden
    bound = c.init_scale / math.sqrt(d)
    rows = []
    if has_attention(c, i):
        rows.append(uniform(f"block.{i}.qkv", (3 * d, d), "matrix", bound))
        rows.append(uniform(f"block.{i}.attention_out", (d, d), "matrix", bound))
    rows.append(uniform(f"block.{i}.mlp_in", (hidden, d), "matrix", bound))
    rows.append(Row(f"block.{i}.mlp_out", (hidden, d) if c.mlp_out_transposed else (d, hidden), "matrix", [0.0]))
    if has_attention(c, i):
        rows.append(Row(f"block.{i}.attention_factors", (2,), "factor", [0.5, 1.0]))
        if not is_mudd_layer(c, i):
            rows.append(Row(f"block.{i}.attention_residual", (1,), "residual", [c.residual_start]))
            rows.append(Row(f"block.{i}.attention_post", (1,), "post", [1.0]))
        if i in c.value_layers and not is_mudd_layer(c, i):
            rows.append(Row(f"block.{i}.value_gate", (c.heads, c.gate_inputs), "value_gate", [0.0]))
        if c.gate_nets == "scalars":
            rows += scalar_rows(c, i)
    if not is_mudd_layer(c, i):
        rows.append(Row(f"block.{i}.mlp_residual", (1,), "residual", [c.residual_start]))
        rows.append(Row(f"block.{i}.mlp_post", (1,), "post", [1.0]))
    return rows


def injected(c, i):
    """(kind, start) of the streams that layer i with attention adds by coefficients of its own."""
    return [] if is_mudd_layer(c, i) else [("x0", 0.0)] * c.x0_injection + [("bigram", 0.05)] * c.bigram


def scalar_rows(c, i):
    """In place of the gate nets."""
    rows = []
    if i in c.xsa_layers:
        rows.append(Row(f"block.{i}.xsa", (c.heads,), "scalar", [0.0]))
    if i in c.attention_gate_layers:
        rows.append(Row(f"block.{i}.attention_gate", (c.heads, c.gate_inputs), "attention_gate", [0.0]))
    if injected(c, i):
        starts = [start for _, start in injected(c, i)]
        rows.append(Row(f"block.{i}.injection", (len(starts),), "scalar", starts))
    return rows


def bigram_columns(c):
    return c.width if c.bigram_columns is None else c.bigram_columns


def parameter_table(c):
    d, vp = c.width, c.padded_vocabulary
    rows = [Row("head", (vp, d), "head", "normal", c.head_start),
            Row("embedding", (vp, d), "embedding", "normal", c.head_start)]
    rows += [Row(f"value_embedding.{j}", (c.vocabulary, d), "value_embedding", "normal", c.value_start)
             for j in range(len(c.value_layers))]
    if c.bigram:
        rows.append(Row("bigram", (c.bigram_rows, bigram_columns(c)), "bigram", [0.0]))
    if c.smear:
        rows.append(Row("smear_gate", (c.gate_inputs,), "smear_gate", [0.0]))
        rows.append(Row("smear_factor", (1,), "factor", [0.0]))
    if c.skip is not None:
        rows.append(Row("skip_factor", (1,), "factor", [-1.5]))
    if c.skip_gate:
        rows.append(Row("skip_gate", (c.gate_inputs,), "skip_gate", [0.0]))
    for i in range(c.layers):
        rows += block_rows(c, i)
    for net in range(2):
        rows += net_rows(c, f"gate_net.{net}", gate_layout(c, net), c.gate_nets, c.gate_net_scale, "gate_net",
                         "gate_bias")
    if c.gate_nets in ("net", "static"):
        rows.append(Row("gate_net.scale", (1,), "gate_bias", [c.gate_net_scale]))
    if c.mudd != "off":
        for net in range(2):
            rows += net_rows(c, f"mudd_net.{net}", mudd_layout(c, net), c.mudd, c.mudd_scale, "mudd_net", "mudd_bias")
    return rows


# ---------------------------------------------------------------- initial values

def draw(seed, name, shape, distribution, bound):
    """Double array; README.md has the formula. A normal value is multiplied by `bound`."""
    key, count = stream_key(seed, name), math.prod(shape)
    i = np.arange(count, dtype=np.uint64)
    if distribution == "uniform":
        return (bound * (2.0 * uniforms(key, i) - 1.0)).reshape(shape)
    radius = np.sqrt(-2.0 * np.log(1.0 - uniforms(key, 2 * i)))
    return (bound * radius * np.cos(2.0 * math.pi * uniforms(key, 2 * i + np.uint64(1)))).reshape(shape)


def live_rows(c, name):
    """Mask of the rows of a tensor that take part: of W_q and W_k those of dims that Q and K of the layer have."""
    rows = {row.name: row.shape[0] for row in parameter_table(c)}[name]
    live = np.ones(rows, dtype=bool)
    if name.endswith(".qkv"):
        head = np.zeros(c.head_dim, dtype=bool)
        head[live_dims(c, int(name.split(".")[1])).numpy()] = True
        live[:2 * c.width] = np.tile(head, 2 * c.heads)
    return live


# Bounds of the uniform values that zero_starts = false adds to a start, by the last part of the name.
ALIVE = {"mlp_out": 0.03, "bigram": 0.5, "smear_gate": 0.5, "smear_factor": 0.5, "value_gate": 0.5, "out": 0.1,
         "bias": 1.0, "xsa": 0.5, "attention_gate": 0.5, "injection": 0.1, "skip_gate": 0.5}


def initial_values(c):
    """name -> fp32 array."""
    values = {}
    for row in parameter_table(c):
        if row.start in ("normal", "uniform"):
            value = draw(c.seed, row.name, row.shape, row.start, row.bound)
        else:
            value = np.broadcast_to(np.array(row.start, dtype=np.float64), row.shape)
            bound = ALIVE.get(row.name.rsplit(".", 1)[-1])
            if bound is not None and not c.zero_starts:
                value = value + draw(c.seed, row.name, row.shape, "uniform", bound)
        values[row.name] = value.astype(np.float32)
        if row.name.endswith(".qkv"):
            values[row.name][~live_rows(c, row.name)] = 0
    if c.tied:
        values["embedding"] = values["head"].copy()
    return values


def signs(c):
    """Constant table of +1 and -1 [sign_rows, bigram_columns]: signs of uniform values of the stream "bigram_sign"."""
    return np.where(draw(c.seed, "bigram_sign", (c.sign_rows, bigram_columns(c)), "uniform", 1.0) < 0, -1.0, 1.0)


def tensors(values, dtype):
    return {name: torch.tensor(value, dtype=dtype).requires_grad_() for name, value in values.items()}


def groups(c):
    return {row.name: row.group for row in parameter_table(c)}


def save(path, parameters):
    np.savez(path, **{name: p.detach().numpy() for name, p in parameters.items()})


def load(path, dtype):
    with np.load(path) as file:
        return tensors(dict(file), dtype)
