"""A language model that nanorun has trained, in PyTorch: the whole forward pass, without a cache of keys and values."""

import importlib
import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

if __package__:
    from .configuration_nanorun import NanorunConfig
else:  # beside this file on Python's path; transformers takes an import statement for a package to install
    NanorunConfig = importlib.import_module("configuration_nanorun").NanorunConfig

try:
    from transformers import GenerationMixin, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput
except ImportError:
    CausalLMOutput = SimpleNamespace

    class GenerationMixin:
        pass

    class PreTrainedModel(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def post_init(self):
            pass

BLOCK = 128  # tokens of a block of the attention window; the rows of the head are padded to a multiple of it


def normalised(x, eps):
    """Divided by the root of the mean square, without weights."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def parameter(*shape):
    return nn.Parameter(torch.empty(*shape))


def turning_pairs(settings):
    """Pairs of dims of a head that turn; with "half_truncated" the second half of those of Q and K stands still."""
    widest = max(settings["qk_dims"] or [settings["head_dim"]])
    return widest // (2 if settings["rotary"] == "full" else 4)


def rotary_frequencies(settings):
    """Of the D/2 pairs of a head, in radians per position."""
    pairs, base = settings["head_dim"] // 2, float(settings["rotary_base"])
    full, turning = settings["rotary"] == "full", turning_pairs(settings)
    steps = turning if full else max(turning - 1, 1)
    frequencies = settings.get("rotary_frequencies") or [base ** (-j / steps) for j in range(turning)]
    return list(frequencies) + [0.0] * (pairs - turning)


class Rotation:
    """Turns the pairs (x[j], x[j + D/2]) of queries and keys by angles that grow with the position."""

    def __init__(self, settings, positions, like):
        frequencies = torch.tensor(rotary_frequencies(settings), dtype=torch.float64)
        angles = positions.to(torch.float64)[..., None].cpu() * frequencies
        self.cos, self.sin = (f(angles).to(like.device, like.dtype) for f in (torch.cos, torch.sin))

    def __call__(self, x):
        """x [..., D]; the dims before D are those of the positions, or broadcast with them."""
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * self.cos + second * self.sin, second * self.cos - first * self.sin), dim=-1)


def qk_dim(settings, layer):
    """Dims of queries and keys in a head of the layer: those of the first pairs."""
    dims = settings["qk_dims"] or [settings["head_dim"]]
    return dims[0] if len(dims) == 1 else dims[layer]


def attention_scale(settings, layer):
    dim, size = qk_dim(settings, layer), settings["head_dim"]
    scale = settings["attention_scale"] or 1 / math.sqrt(size)
    return scale if dim == size else settings["attention_scale_narrow"] or scale * math.sqrt(size / dim)


def normalised_head(x, settings, layer):
    """Of queries or keys [..., D], unless the model does not norm them; dims that the layer does not have become 0."""
    if not settings["qk_norm"]:
        return x
    dim, size = qk_dim(settings, layer), settings["head_dim"]
    if dim == size:
        return normalised(x, settings["norm_eps"])
    x = x * (torch.arange(size, device=x.device) % (size // 2) < dim // 2)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) / dim + settings["norm_eps"])


def windows_of(config):
    """Tokens of the windows of the layers with each letter."""
    if config.stage:
        return {"S": config.stage[0]["short_window"], "L": config.stage[0]["long_window"]}
    long = int(config.window["last"])
    unit = BLOCK if config.window["kind"] == "block" else config.window["quantum"]
    return {"S": unit * max(1, long // unit // 2), "L": long}


def letters_of(config):
    """The letter of each layer."""
    letters = config.window["layers"]
    return letters * config.model["layers"] if len(letters) == 1 else letters


def visible(documents, kind, reach):
    """[batch, 1, T, T]: whether the query of a row sees the key of a column. documents [batch, T] numbers them."""
    position = torch.arange(documents.shape[1], device=documents.device)
    distance = position[:, None] - position
    if kind == "block":
        near = position[:, None] // BLOCK - position // BLOCK < reach // BLOCK
    else:
        near = distance <= reach if kind == "tokens_before" else distance < reach
    return ((distance >= 0) & near & (documents[:, :, None] == documents[:, None, :]))[:, None]


class Block(nn.Module):
    """Attention, where the layer has it, and a perceptron with squared relu."""

    def __init__(self, settings, index):
        super().__init__()
        width, hidden = settings["width"], settings["mlp_ratio"] * settings["width"]
        self.settings, self.index = settings, index
        self.attends = index not in settings["layers_without_attention"]
        self.residual_mix = parameter(2)
        if self.attends:
            self.qkv = parameter(3 * width, width)
            self.attention_out = parameter(width, width)
            self.value_mix = parameter(1 if settings["value_path"] == "first" else 2)
        self.mlp_in = parameter(hidden, width)
        self.mlp_out = parameter(width, hidden)

    def forward(self, x, x0, rotation, seen, embedded, first_value):
        """Returns the new stream [batch, T, width], and the values of layer 0, which later ones may mix in."""
        eps = self.settings["norm_eps"]
        x = self.residual_mix[0] * x + self.residual_mix[1] * x0
        if self.attends:
            heads, first_value = self.attention(normalised(x, eps), rotation, seen, embedded, first_value)
            x = x + functional.linear(heads, self.attention_out)
        hidden = functional.linear(normalised(x, eps), self.mlp_in).relu().square()
        return x + functional.linear(hidden, self.mlp_out), first_value

    def attention(self, x, rotation, seen, embedded, first_value):
        heads, size = self.settings["heads"], self.settings["head_dim"]
        split = functional.linear(x, self.qkv).unflatten(-1, (3, heads, size))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, T, size]
        queries, keys = (rotation(normalised_head(x, self.settings, self.index)) for x in (queries, keys))
        if first_value is None:
            first_value = values
        if self.settings["value_path"] == "first":
            values = (1 - self.value_mix[0]) * values + self.value_mix[0] * first_value
        else:
            values = self.value_mix[0] * values
            if embedded is not None:
                values = values + self.value_mix[1] * embedded.unflatten(-1, (heads, size)).transpose(1, 2)
        scores = queries @ keys.transpose(-1, -2) * attention_scale(self.settings, self.index)
        scores = scores.masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2), first_value


class NanorunModel(PreTrainedModel, GenerationMixin):
    """What models have in common. Texts begin with the token config.bos_token_id, which also separates documents."""

    config_class = NanorunConfig

    def __init__(self, config):
        super().__init__(config)
        settings = self.settings = config.model
        vocabulary, width = settings["vocabulary"], settings["width"]
        padded = -(-vocabulary // BLOCK) * BLOCK
        self.embedding = parameter(padded if settings.get("tied_head") else vocabulary, width)
        self.head = parameter(padded, width)

    def _init_weights(self, module):
        """All weights come from a file."""

    def stream(self, input_ids):
        """[batch, T, width], before the last norm."""
        raise NotImplementedError

    def documents(self, input_ids):
        """[batch, T]: numbers of what attention stays within, documents or rows of a fixed length."""
        if self.config.data.get("packing") == "rows":
            position = torch.arange(input_ids.shape[1], device=input_ids.device)
            return (position // self.config.data["row_length"]).expand(input_ids.shape)
        return (input_ids == self.config.bos_token_id).cumsum(1)

    def head_logits(self, x):
        """Of a stream x, before the softcap."""
        return functional.linear(normalised(x, self.settings["norm_eps"]), self.head)

    def all_logits(self, input_ids):
        """[batch, T, padded vocabulary]"""
        settings = self.settings
        logits = self.head_logits(self.stream(input_ids))
        cap, kind = settings["softcap"], settings.get("softcap_kind")
        if kind == "sigmoid":
            return cap * torch.sigmoid((logits + settings["softcap_shift"]) / settings["softcap_width"])
        if kind == "isru":
            return cap * logits * torch.rsqrt(logits.square() + cap * cap)
        return logits if kind == "none" else cap * torch.tanh(logits / cap)

    def forward(self, input_ids, labels=None, **unused):
        """Logits [batch, T, vocabulary]; with labels [batch, T], the same tokens as input_ids, also the mean loss of
        what follows each token, -100 left out. As in training, the padding of the head counts in it."""
        logits = self.all_logits(input_ids)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits[..., :self.settings["vocabulary"]])

    def prepare_inputs_for_generation(self, input_ids, **unused):
        return {"input_ids": input_ids}


class NanorunForCausalLM(NanorunModel):
    """Models with model.residual = "unet"."""

    def __init__(self, config):
        super().__init__(config)
        settings = self.settings
        vocabulary, width, layers = settings["vocabulary"], settings["width"], settings["layers"]
        self.tables = settings["value_embeddings"] if settings["value_path"] == "embeddings" else 0
        self.value_embedding = nn.ParameterList(parameter(vocabulary, width) for _ in range(self.tables))
        self.block = nn.ModuleList(Block(settings, index) for index in range(layers))
        self.skip = nn.ParameterList(parameter(1) for _ in range(layers // 2))
        self.post_init()

    def embedded_values(self, layer, input_ids):
        """What the layer mixes into its values: a table serves one of the first layers and one of the last."""
        table = layer if layer < self.tables else layer - (self.settings["layers"] - self.tables)
        return functional.embedding(input_ids, self.value_embedding[table]) if 0 <= table < self.tables else None

    def stream(self, input_ids):
        settings, layers = self.settings, self.settings["layers"]
        documents, kind = self.documents(input_ids), self.config.window["kind"]
        seen = {letter: visible(documents, kind, reach) for letter, reach in windows_of(self.config).items()}
        x = x0 = normalised(functional.embedding(input_ids, self.embedding), settings["norm_eps"])
        rotation = Rotation(settings, torch.arange(input_ids.shape[1]), x0)
        outputs, first_value = [], None
        for layer, (block, letter) in enumerate(zip(self.block, letters_of(self.config))):
            if layer >= layers // 2:
                x = x + self.skip[layer - layers // 2] * outputs[layers - 1 - layer]
            embedded = self.embedded_values(layer, input_ids)
            x, first_value = block(x, x0, rotation, seen[letter], embedded, first_value)
            outputs.append(x)
        return x
