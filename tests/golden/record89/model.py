"""The forward pass of one sequence."""

import torch
import torch.nn.functional as F

from . import data
from .attention import attention
from .candidates import candidates
from .fp8 import Products
from .loss import head_product, token_losses
from .mlp import mlp
from .numbers import rms_norm
from .parameters import gate_layout, has_attention, injected, is_mudd_layer, mudd_layout, signs


class Tokens:
    """What a sequence looks up."""

    def __init__(self, c, sequence, prefixes, attention_document=None):
        self.inputs = torch.from_numpy(sequence.inputs)
        self.targets = torch.from_numpy(sequence.targets)
        self.prefixes = prefixes[self.targets]
        self.document = (self.inputs == c.end_of_text).cumsum(0)
        if attention_document:
            self.document = cut(self.document, attention_document)
        if c.bigram:
            self.bigram_rows = torch.from_numpy(data.bigram_rows(sequence.inputs, c.bigram_rows))
            if c.sign_rows:
                self.sign_rows = torch.from_numpy(data.sign_rows(sequence.inputs, c.sign_rows))


def cut(documents, tokens):
    """Numbers of the pieces of `tokens` tokens, the last one shorter, into which attention divides each document."""
    pieces, piece, size = [], -1, 0
    for t, document in enumerate(documents.tolist()):
        begins = t == 0 or document != documents[t - 1] or size == tokens
        piece, size = piece + begins, 1 if begins else size + 1
        pieces.append(piece)
    return torch.tensor(pieces)


class Model:
    def __init__(self, c, parameters, prefixes):
        """prefixes: array of the padded vocabulary, a token's prefix token or -1."""
        self.c, self.p = c, parameters
        self.dtype = parameters["head"].dtype
        self.prefixes = torch.as_tensor(prefixes)
        self.signs = torch.tensor(signs(c), dtype=self.dtype) if c.bigram else None
        self.trace = None  # a dict here collects the streams of the next forward pass

    # ------------------------------------------------------------ loss

    def loss(self, sequence, settings, training=True, fp8=None, index=0):
        """Sum over the tokens of sequence `index` of a step; fp8: the state of the MLP's scales in training."""
        t = Tokens(self.c, sequence, self.prefixes, settings.attention_document)
        x = self.stream(t, settings, fp8, index)
        z = head_product(self.c, x, self.p["head"], training)
        chosen = None
        if training and settings.candidates > 0:
            chosen = candidates(self.c, settings.candidates, settings.step, index, t.targets)
        return token_losses(self.c, z, t.targets, settings.weights, t.prefixes, settings.prefix, chosen).sum()

    # ------------------------------------------------------------ streams

    def keep(self, name, x):
        if self.trace is not None:
            self.trace[name] = x
        return x

    def stream(self, t, settings, fp8, index):
        """The normed final stream [T, d]."""
        c, p = self.c, self.p
        x0 = self.keep("x0", self.start(t))
        bigram = self.bigrams(t) if c.bigram else 0
        values = [F.embedding(t.inputs, p[f"value_embedding.{j}"]) for j in range(len(c.value_layers))]
        gates = self.gates(0, x0)
        x = c0 = self.keep("c0", x0 + gates.get(("bigram", 0), 0) * bigram)
        kept = {}
        for i in range(c.layers):
            if i == c.gate_net_split:
                gates |= self.gates(1, x)
            if i == c.layers - 1:
                kept["last"] = x
            source = kept["late"] if "late" in kept else x
            sources = {"x0": x0, "c0": c0, "bigram": bigram, "skip": kept.get("skip"), "late": kept.get("late")}
            x = self.block(i, x, source, sources, values, gates, t, settings, fp8, index)
            self.keep(f"x.{i}", x)
            if c.skip is not None and i == c.skip[0]:
                kept["skip"] = x
            if i == c.late_source:
                kept["late"] = x
        if c.mudd != "off":
            mu = self.coefficients("mudd_net.1", mudd_layout(c, 1), c.mudd, c.mudd_scale, x)
            first = values[0] if values else None
            for j, other in enumerate([c0, kept.get("late"), kept["last"], first, kept.get("skip")]):
                if other is not None:
                    x = x + mu[("mu", j)] * other
        return rms_norm(self.keep("final", x), c.norm_eps)

    def start(self, t):
        c, p = self.c, self.p
        e = F.embedding(t.inputs, p["embedding"])
        if c.smear:
            share = p["smear_factor"] * torch.sigmoid(e[1:, :c.gate_inputs] @ p["smear_gate"])
            e = torch.cat([e[:1], e[1:] + share[:, None] * e[:-1]])
        return rms_norm(e, c.norm_eps)

    def bigrams(self, t):
        """[T, d], zero behind the columns that the table has."""
        rows = self.p["bigram"][t.bigram_rows]
        if self.c.sign_rows:
            rows = rows * self.signs[t.sign_rows]
        return F.pad(rows, (0, self.c.width - rows.shape[1]))

    # ------------------------------------------------------------ coefficients

    def gates(self, net, u):
        c = self.c
        if c.gate_nets == "scalars":
            return self.scalars(u) if net == 0 else {}
        scale = self.p["gate_net.scale"] if c.gate_nets != "constant" else c.gate_net_scale
        return self.coefficients(f"gate_net.{net}", gate_layout(c, net), c.gate_nets, scale, u)

    def scalars(self, x0):
        """What the gate nets give, but for the attention gates, which read their layer's input."""
        c, p, length = self.c, self.p, x0.shape[0]
        gates = {("xsa", i): p[f"block.{i}.xsa"].expand(length, -1) for i in c.xsa_layers}
        for i in range(c.layers):
            for j, (kind, _) in enumerate(injected(c, i) if has_attention(c, i) else []):
                gates[(kind, i)] = p[f"block.{i}.injection"][j].expand(length, 1)
        if c.skip is not None:
            gate = 2 * torch.sigmoid(x0[:, :c.gate_inputs] @ p["skip_gate"])[:, None] if c.skip_gate else 1
            gates[("skip", c.skip[1])] = gate
        return gates

    def coefficients(self, name, layout, mode, scale, u):
        """(kind, layer) -> [T, count], which multiplies a stream [T, d] where count is 1."""
        p, length = self.p, u.shape[0]
        if not layout:
            return {}
        if mode == "constant":
            return {(k.kind, k.layer): torch.full((length, k.count), k.start, dtype=u.dtype) for k in layout}
        out = p[f"{name}.bias"].expand(length, -1)
        if mode == "net":
            out = F.gelu(u @ p[f"{name}.in"].T) @ p[f"{name}.out"].T + out
        pieces = (scale * out).split([k.count for k in layout], dim=-1)
        return {(k.kind, k.layer): piece for k, piece in zip(layout, pieces)}

    # ------------------------------------------------------------ blocks

    def block(self, i, x, source, sources, values, gates, t, settings, fp8, index):
        c, p = self.c, self.p
        if is_mudd_layer(c, i):
            return self.mudd_block(i, x, source, sources, values, gates, t, settings, fp8, index)
        if has_attention(c, i):
            n = rms_norm(source, c.norm_eps)
            o = self.attention(i, n, self.gated_value(i, n, values), gates, t, settings, fp8)
            x = p[f"block.{i}.attention_residual"] * x + p[f"block.{i}.attention_post"] * o
            if c.x0_injection:
                x = x + gates[("x0", i)] * sources["x0"]
            if c.bigram and i > 0:
                x = x + gates[("bigram", i)] * sources["bigram"]
        elif c.skip is not None and i == c.skip[1]:
            x = x + torch.sigmoid(p["skip_factor"]) * gates[("skip", i)] * sources["skip"]
        o = mlp(c, i, rms_norm(x, c.norm_eps), p, fp8, index)
        return p[f"block.{i}.mlp_residual"] * x + p[f"block.{i}.mlp_post"] * o

    def mudd_block(self, i, x, source, sources, values, gates, t, settings, fp8, index):
        """The last layer, whose coefficients all come from the net that reads x. c0 takes the place of x0."""
        c, c0, late = self.c, sources["c0"], sources["late"]
        m = self.coefficients("mudd_net.0", mudd_layout(c, 0), c.mudd, c.mudd_scale, x)
        m = [m[("m", j)] for j in range(14)]
        late = torch.zeros_like(x) if late is None else late
        aux = (c.mudd_value_scale * (m[0] * c0 + m[1] * late + m[2] * x)).view(-1, c.heads, c.head_dim)
        if i in c.value_layers:
            halves = torch.cat([m[6], m[7]], dim=-1).repeat_interleave(c.heads // 2, dim=-1)
            aux = aux + halves.unsqueeze(-1) * self.value_heads(i, values)
        x = (1 + m[5]) * x + m[3] * c0 + m[4] * late
        o = self.attention(i, rms_norm(source, c.norm_eps), aux, gates, t, settings, fp8)
        x = m[8] * x + m[9] * o + m[10] * c0 + m[11] * sources["bigram"]
        return m[12] * x + m[13] * mlp(c, i, rms_norm(x, c.norm_eps), self.p, fp8, index)

    def attention(self, i, n, aux, gates, t, settings, fp8):
        c = self.c
        weights = {name: self.p[f"block.{i}.{name}"] for name in ("qkv", "attention_out", "attention_factors")}
        mine = {kind: value for (kind, layer), value in gates.items() if layer == i}
        if c.gate_nets == "scalars" and i in c.attention_gate_layers:
            mine["attention_gate"] = torch.sigmoid(n[:, :c.gate_inputs] @ self.p[f"block.{i}.attention_gate"].T)
        window = settings.window_long if i in c.long_layers else settings.window_short
        narrow = c.qk_dims is not None and c.qk_dims[i] < c.head_dim
        rotary = settings.narrow_rotary if narrow else settings.rotary
        return attention(c, i, n, weights, aux, mine, rotary, window, t.document,
                         fp8.qkv if isinstance(fp8, Products) else None)

    def value_heads(self, i, values):
        c = self.c
        return values[c.value_layers.index(i)].view(-1, c.heads, c.head_dim)

    def gated_value(self, i, n, values):
        """What the value embedding of layer i adds to v, [T, H, D], or None."""
        c = self.c
        if i not in c.value_layers:
            return None
        ve, half = values[c.value_layers.index(i)], c.gate_inputs // 2
        seen = torch.cat([n[:, :half], ve[:, :half]], dim=-1)
        if i in c.value_layers_gated_by_input:
            seen = n[:, :c.gate_inputs]
        gate = 2 * torch.sigmoid(seen @ self.p[f"block.{i}.value_gate"].T)
        return gate.unsqueeze(-1) * self.value_heads(i, values)
