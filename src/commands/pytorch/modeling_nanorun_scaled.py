"""A language model with model.residual = "scaled", such as record 89 of the NanoGPT speedrun, in PyTorch: the whole
forward pass, without a cache of keys and values. The headers of nanorun's ops, kernels/*/*.hpp, have the formulas."""

import importlib
import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

if __package__:
    from .modeling_nanorun import (NanorunModel, Rotation, attention_scale, letters_of, normalised, normalised_head,
                                   parameter, turning_pairs, visible, windows_of)
else:  # as in modeling_nanorun.py
    common = importlib.import_module("modeling_nanorun")
    NanorunModel, Rotation, attention_scale, letters_of, normalised, normalised_head, parameter, turning_pairs = (
        common.NanorunModel, common.Rotation, common.attention_scale, common.letters_of, common.normalised,
        common.normalised_head, common.parameter, common.turning_pairs)
    visible, windows_of = common.visible, common.windows_of


def mudd_layer(settings, layer):
    """Whether the layer mixes streams with the coefficients of a MUDD net: the last one does."""
    return settings["mudd"] and layer == settings["layers"] - 1


def injects(settings, layer):
    """Whether the layer adds x0 and bigrams, with coefficients of its own."""
    return layer not in settings["layers_without_attention"] and not mudd_layer(settings, layer)


def injections(settings):
    """Coefficients of an injection: of x0, and of the second stream where there is one."""
    return 2 if settings["bigram_rows"] or settings["second_embedding"] else 1


def bigram_columns(settings):
    """Columns of the stream that have an embedding of bigrams: the first."""
    return settings["bigram_columns"] or settings["width"]


def value_tables(settings):
    """The table that each of value_layers reads."""
    return settings["value_tables"] or range(len(settings["value_layers"]))


def columns_of_gate_net(settings, layers):
    """Columns of the gate net of some layers, by name, in their order."""
    heads = settings["heads"]
    columns = {f"xsa.{i}": heads for i in layers if i in settings["xsa_layers"]}
    columns |= {f"attention_gate.{i}": heads for i in layers if i in settings["gated_layers"]}
    columns |= {f"injection.{i}": injections(settings) for i in layers if injects(settings, i)}
    if any(layer in layers for layer in settings["skip_to"]):
        columns["skip"] = 1
    for i in layers:
        if i in settings["composed_layers"]:
            columns |= {f"composition.{i}.w1": heads, f"composition.{i}.w2": heads}
    return columns


# Columns of the nets of MUDD, by name, in their order: mudd.MIX.STREAM says how much of a stream a mix takes.
MUDD_LAYER_COLUMNS = {
    "mudd.values.first": 1,
    "mudd.values.late": 1,
    "mudd.values.input": 1,
    "mudd.before.first": 1,
    "mudd.before.late": 1,
    "mudd.before.input": 1,
    "mudd.value_gates": 2,
    "mudd.after_attention.stream": 1,
    "mudd.after_attention.attention": 1,
    "mudd.after_attention.first": 1,
    "mudd.after_attention.bigram": 1,
    "mudd.after_mlp.stream": 1,
    "mudd.after_mlp.mlp": 1,
}
MUDD_LAST_COLUMNS = {
    "mudd.last.first": 1,
    "mudd.last.late": 1,
    "mudd.last.input": 1,
    "mudd.last.value_rows": 1,
    "mudd.last.skip": 1,
}


class CoefficientNet(nn.Module):
    """Numbers per token from a stream, by name: scale (gelu(x in^T) out^T + bias)."""

    def __init__(self, settings, columns):
        super().__init__()
        width, hidden, outputs = settings["width"], settings["coefficient_width"], sum(columns.values())
        self.columns = columns
        self.register_parameter("in", parameter(hidden, width))
        self.out = parameter(outputs, hidden)
        self.bias = parameter(outputs)

    def forward(self, x, scale):
        """Name -> [batch, T, columns]."""
        hidden = functional.gelu(functional.linear(x, self.get_parameter("in")))
        values = scale * functional.linear(hidden, self.out, self.bias)
        return dict(zip(self.columns, values.split(list(self.columns.values()), dim=-1)))


class GateNets(nn.Module):
    """One for the layers before gate_net_layer, which reads x0, and one for the others, which reads the input of that
    layer. They share a learned scale."""

    def __init__(self, settings):
        super().__init__()
        split, layers = settings["gate_net_layer"], settings["layers"]
        self.scale = parameter(1)
        for name, served in (("0", range(split)), ("1", range(split, layers))):
            columns = columns_of_gate_net(settings, served)
            if columns:
                self.add_module(name, CoefficientNet(settings, columns))

    def forward(self, name, x):
        return getattr(self, name)(x, self.scale) if hasattr(self, name) else {}


def probabilities(queries, keys, scale, seen):
    """[batch, heads, T, T] of queries and keys [batch, T, heads, D]."""
    scores = torch.einsum("bthd,bshd->bhts", queries, keys) * scale
    return scores.masked_fill(~seen, -math.inf).softmax(-1)


def key_offset(keys, turning):
    """The dims that rotary leaves still come from the token before; the first token keeps its own."""
    size = keys.shape[-1]
    still = torch.arange(size, device=keys.device) % (size // 2) >= turning
    return torch.where(still, torch.cat((keys[:, :1], keys[:, :-1]), dim=1), keys)


def without_own_value(outputs, values, alpha):
    """XSA: a part of what lies along the token's own value is taken from each head's output."""
    along = (outputs * values).sum(-1, keepdim=True) / values.square().sum(-1, keepdim=True).clamp_min(1e-8)
    return outputs - torch.tanh(alpha)[..., None] * along * values


class ScaledBlock(nn.Module):
    """Attention, where the layer has it, and a perceptron with squared relu. `p` holds what a forward pass knows:
    ScaledNanorunForCausalLM.begin()."""

    def __init__(self, settings, layer):
        super().__init__()
        width, hidden, heads = settings["width"], settings["mlp_ratio"] * settings["width"], settings["heads"]
        self.settings, self.layer = settings, layer
        self.attends = layer not in settings["layers_without_attention"]
        self.paired = layer in settings["paired_layers"]
        self.table = dict(zip(settings["value_layers"], value_tables(settings))).get(layer)
        if self.attends:
            self.qkv = parameter(3 * width, width)
            self.attention_out = parameter(width, width)
            self.attention_factors = parameter(2)
        self.mlp_in = parameter(hidden, width)
        self.mlp_out = parameter(width, hidden)
        self.add_factors(settings, layer)
        if self.table is not None and not mudd_layer(settings, layer):
            self.value_gate = parameter(heads, settings["gate_columns"])
        if settings["gate_nets"]:
            return
        if layer in settings["xsa_layers"]:
            self.xsa = parameter(heads)
        if layer in settings["gated_layers"]:
            self.attention_gate = parameter(heads, settings["gate_columns"])
        if injects(settings, layer):
            self.injection = parameter(injections(settings))

    def add_factors(self, settings, layer):
        """Parameters of the joins below."""
        if self.attends:
            self.attention_residual, self.attention_post = parameter(1), parameter(1)
        self.mlp_residual, self.mlp_post = parameter(1), parameter(1)

    def forward(self, x, p):
        """Returns the new stream [batch, T, width]."""
        eps = self.settings["norm_eps"]
        x = self.before(x, p)
        if self.attends:
            heads = self.attention(normalised(self.attention_input(x, p), eps), p)
            out = self.attention_factors[1] * functional.linear(heads, self.attention_out)
            x = self.after_attention(x, out, p)
        hidden = functional.linear(normalised(x, eps), self.mlp_in).relu().square()
        return self.after_mlp(x, functional.linear(hidden, self.mlp_out), p)

    # Joins, which the last layer does in another way under MUDD.

    def before(self, x, p):
        if self.layer not in self.settings["skip_to"]:
            return x
        skip = self.settings["skip_to"].index(self.layer)
        skipped = p.layer_inputs[self.settings["skip_from"][skip] + 1]
        gate = p.gates["skip"][..., skip:skip + 1] if "skip" in p.gates else 1
        return x + torch.sigmoid(p.skip_factor[skip]) * gate * skipped

    def after_attention(self, x, out, p):
        share = self.coefficient("injection", p)
        x = self.attention_residual * x + self.attention_post * out + share[..., :1] * p.x0
        return x + share[..., 1:] * p.second if p.second is not None and self.layer > 0 else x

    def after_mlp(self, x, out, p):
        return self.mlp_residual * x + self.mlp_post * out

    def added_values(self, n, p):
        """What the values take up beside their projection: [batch, T, heads, D], or 0."""
        if self.table is None:
            return 0
        rows, columns = p.value_rows[self.table], self.settings["gate_columns"]
        if self.layer in self.settings["value_layers_gated_by_input"]:
            inputs = n[..., :columns]
        else:
            inputs = torch.cat((n[..., :columns // 2], rows[..., :columns // 2]), dim=-1)
        gate = 2 * torch.sigmoid(functional.linear(inputs, self.value_gate))
        return gate[..., None] * self.by_heads(rows)

    # Attention.

    def by_heads(self, x):
        return x.unflatten(-1, (self.settings["heads"], self.settings["head_dim"]))

    def coefficient(self, name, p):
        """Per token from a gate net, else learned."""
        return p.gates[f"{name}.{self.layer}"] if self.settings["gate_nets"] else getattr(self, name)

    def attention_input(self, x, p):
        source = self.settings["attention_source"] + 1  # the layer whose input the layers above read
        return p.layer_inputs[source] if 0 < source < self.layer else x

    def attention(self, n, p):
        """The heads' outputs, side by side."""
        scale = attention_scale(self.settings, self.layer)
        split = functional.linear(n, self.qkv).chunk(3, dim=-1)
        queries, keys, values = (self.by_heads(x) for x in split)  # each [batch, T, heads, D]
        rotation = p.paired_rotation if self.paired else p.rotation
        queries, keys = (rotation(normalised_head(x, self.settings, self.layer)) for x in (queries, keys))
        values = self.attention_factors[0] * values + self.added_values(n, p)
        if self.layer in self.settings["key_offset_layers"]:
            keys = key_offset(keys, turning_pairs(self.settings))
        if self.paired:
            outputs = self.paired_attention(queries, keys, values, scale, p.paired_seen)
        else:
            outputs = self.single_attention(queries, keys, values, scale, p)
        if self.layer in self.settings["xsa_layers"]:
            outputs = without_own_value(outputs, values, self.coefficient("xsa", p))
        if self.layer in self.settings["gated_layers"]:
            outputs = self.head_gate(n, p)[..., None] * outputs
        return outputs.flatten(-2)

    def single_attention(self, queries, keys, values, scale, p):
        seen = p.seen[self.layer]
        outputs = torch.einsum("bhts,bshd->bthd", probabilities(queries, keys, scale, seen), values)
        if self.layer in self.settings["composed_layers"]:
            local = probabilities(queries, keys, scale, seen & p.composition_seen)
            outputs = outputs + self.composition(local, values, p)
        return outputs

    def paired_attention(self, queries, keys, values, scale, seen):
        """Heads attend as half as many, whose sequence has two rows a token: first those of the first half of heads."""
        batch, length, heads, size = queries.shape
        rows = [x.reshape(batch, 2 * length, heads // 2, size) for x in (queries, keys, values)]
        outputs = torch.einsum("bhts,bshd->bthd", probabilities(*rows[:2], scale, seen), rows[2])
        return outputs.reshape(batch, length, heads, size)

    def composition(self, local, values, p):
        """Each head attends once more, with one sum of all heads' local probabilities."""
        w1, w2 = (p.gates[f"composition.{self.layer}.{name}"] for name in ("w1", "w2"))
        shares = normalised(w1, 1e-6)
        mixed = torch.einsum("bth,bhts->bts", shares, local)
        return w2[..., None] * torch.einsum("bts,bshd->bthd", mixed, values)

    def head_gate(self, n, p):
        if self.settings["gate_nets"]:
            return self.coefficient("attention_gate", p)
        return torch.sigmoid(functional.linear(n[..., :self.settings["gate_columns"]], self.attention_gate))


class MuddBlock(ScaledBlock):
    """The last layer under MUDD, whose mixes have the coefficients of MUDD_LAYER_COLUMNS."""

    def add_factors(self, settings, layer):
        """There are none: the net has them."""

    def before(self, x, p):
        first, late = self.earlier(p)
        m = self.shares("before", p)
        return x + m.input * x + m.first * first + m.late * late

    def after_attention(self, x, out, p):
        m = self.shares("after_attention", p)
        x = m.stream * x + m.attention * out + m.first * p.layer_inputs[0]
        return x if p.second is None else x + m.bigram * p.second

    def after_mlp(self, x, out, p):
        m = self.shares("after_mlp", p)
        return m.stream * x + m.mlp * out

    def added_values(self, n, p):
        first, late = self.earlier(p)
        m = self.shares("values", p)
        mixed = m.first * first + m.late * late + m.input * p.layer_inputs[self.layer]
        streams = self.settings["mudd_value_scale"] * mixed
        gates = p.gates["mudd.value_gates"].repeat_interleave(self.settings["heads"] // 2, dim=-1)
        return self.by_heads(streams) + gates[..., None] * self.by_heads(p.value_rows[self.table])

    def earlier(self, p):
        """The first stream, and the one that late layers attend from."""
        return p.layer_inputs[0], p.layer_inputs[self.settings["attention_source"] + 1]

    def shares(self, mix, p):
        """The coefficients [batch, T, 1] of a mix, by stream."""
        prefix = f"mudd.{mix}."
        return SimpleNamespace(**{name.removeprefix(prefix): share for name, share in p.gates.items()
                                  if name.startswith(prefix)})


def bigram_rows(tokens, rows):
    """Row of each pair of tokens [batch, T]: a hash in 32-bit arithmetic; the first token counts as rows - 1."""
    before = torch.cat((tokens[:, :1], tokens[:, :-1]), dim=1)
    before[:, :2] = rows - 1
    mixed = (36313 * tokens & 0xFFFFFFFF) ^ (27191 * before & 0xFFFFFFFF)
    signed = mixed - ((mixed >> 31) << 32)
    hashed = signed % (rows - 1)
    hashed[:, 0] = rows - 1
    return hashed


def sign_rows(tokens, rows):
    """Row of signs of each pair of tokens [batch, T]."""
    indices = torch.zeros_like(tokens)
    indices[:, 1:] = (tokens[:, :-1] ^ tokens[:, 1:]) % rows
    return indices


class ScaledNanorunForCausalLM(NanorunModel):
    """Models with model.residual = "scaled"."""

    ordinary_block = ScaledBlock

    def __init__(self, config):
        super().__init__(config)
        settings = self.settings
        vocabulary, width, layers = settings["vocabulary"], settings["width"], settings["layers"]
        self.value_embedding = nn.ParameterList(parameter(vocabulary, width) for _ in set(value_tables(settings)))
        if settings["bigram_rows"]:
            self.bigram = parameter(settings["bigram_rows"], bigram_columns(settings))
        if settings["bigram_sign_rows"]:
            self.bigram_sign = parameter(settings["bigram_sign_rows"], bigram_columns(settings))
        if settings["smear"]:
            self.smear_factor, self.smear_gate = parameter(1), parameter(settings["gate_columns"])
        skips = len(settings["skip_to"])
        if skips:
            self.skip_factor = parameter(skips)
        if settings["skip_gate"]:
            self.skip_gate = parameter(*(skips, settings["gate_columns"])[skips == 1:])
        if settings["gate_nets"]:
            self.gate_net = GateNets(settings)
        if settings["mudd"]:
            nets = (MUDD_LAYER_COLUMNS, MUDD_LAST_COLUMNS)
            self.mudd_net = nn.ModuleList(CoefficientNet(settings, columns) for columns in nets)
        kinds = (MuddBlock if mudd_layer(settings, layer) else self.ordinary_block for layer in range(layers))
        self.block = nn.ModuleList(kind(settings, layer) for layer, kind in enumerate(kinds))
        self.post_init()

    def stream(self, input_ids):
        settings = self.settings
        p = self.begin(input_ids)
        x = self.first_stream(p)
        for layer, block in enumerate(self.block):
            p.layer_inputs.append(x)
            if settings["gate_nets"] and layer == settings["gate_net_layer"]:
                p.gates |= self.gate_net("1", x)
            if mudd_layer(settings, layer):
                p.gates |= self.mudd_net[0](x, settings["mudd_scale"])
            x = block(x, p)
        return self.last_mix(x, p)

    def first_stream(self, p):
        """What the first layer reads."""
        if p.second is None:
            return p.x0
        return p.x0 + self.block[0].coefficient("injection", p)[..., 1:] * p.second

    def begin(self, input_ids):
        """What the tokens alone decide, and `layer_inputs`, those of the layers so far."""
        settings, (batch, length) = self.settings, input_ids.shape
        x0 = self.embed(input_ids)
        p = SimpleNamespace(x0=x0, layer_inputs=[], second=self.second_stream(input_ids),
                            skip_factor=getattr(self, "skip_factor", None))
        p.value_rows = [functional.embedding(input_ids, table) for table in self.value_embedding]
        p.gates = self.gate_net("0", x0) if settings["gate_nets"] else {}
        if settings["skip_gate"]:
            columns, weights = settings["gate_columns"], self.skip_gate
            p.gates["skip"] = 2 * torch.sigmoid(functional.linear(x0[..., :columns], weights.view(-1, columns)))

        positions = torch.arange(length)[:, None]
        p.rotation = Rotation(settings, positions, x0)
        p.paired_rotation = Rotation(settings, 2 * positions + torch.arange(settings["heads"]) % 2, x0)
        documents, kind, windows = self.documents(input_ids), self.config.window["kind"], windows_of(self.config)
        masks = {letter: visible(documents, kind, reach) for letter, reach in windows.items()}
        p.seen = [masks[letter] for letter in letters_of(self.config)]
        p.composition_seen = visible(documents, "token", settings["composition_window"])
        if settings["paired_layers"]:
            p.paired_seen = visible(documents.repeat_interleave(2, dim=1), kind, windows["S"])
        return p

    def embed(self, input_ids):
        """x0: the tokens' embeddings, to which a part of that of the token before is added."""
        x = functional.embedding(input_ids, self.embedding)
        if self.settings["smear"]:
            gate = torch.sigmoid(x[:, 1:, :self.settings["gate_columns"]] @ self.smear_gate)
            share = self.smear_factor * gate[..., None]
            x = torch.cat((x[:, :1], x[:, 1:] + share * x[:, :-1]), dim=1)
        return normalised(x, self.settings["norm_eps"])

    def second_stream(self, input_ids):
        """What layers add beside x0: rows of bigrams."""
        settings = self.settings
        if not settings["bigram_rows"]:
            return None
        rows = functional.embedding(bigram_rows(input_ids, settings["bigram_rows"]), self.bigram)
        if settings["bigram_sign_rows"]:
            rows = rows * functional.embedding(sign_rows(input_ids, settings["bigram_sign_rows"]), self.bigram_sign)
        return functional.pad(rows, (0, settings["width"] - bigram_columns(settings)))

    def last_mix(self, x, p):
        """What MUDD adds behind the last layer."""
        settings = self.settings
        if not settings["mudd"]:
            return x
        sources = {"first": p.layer_inputs[0], "late": p.layer_inputs[settings["attention_source"] + 1],
                   "input": p.layer_inputs[-1], "value_rows": p.value_rows[0],
                   "skip": p.layer_inputs[settings["skip_from"][0] + 1]}
        shares = self.mudd_net[1](x, settings["mudd_scale"])
        return x + sum(shares[f"mudd.last.{name}"] * source for name, source in sources.items())
