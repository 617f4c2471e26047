"""A language model with model.residual = "plain", the transformer without the speedrun's streams, in PyTorch: the whole
forward pass, without a cache of keys and values."""

import importlib
import math

import torch
from torch import nn
from torch.nn import functional

if __package__:
    from .modeling_nanorun import (NanorunModel, Rotation, attention_scale, letters_of, normalised, normalised_head,
                                   parameter, visible, windows_of)
else:  # as in modeling_nanorun.py
    common = importlib.import_module("modeling_nanorun")
    NanorunModel, Rotation, attention_scale, letters_of, normalised, normalised_head, parameter = (
        common.NanorunModel, common.Rotation, common.attention_scale, common.letters_of, common.normalised,
        common.normalised_head, common.parameter)
    visible, windows_of = common.visible, common.windows_of


def scaled_norm(x, gain, eps):
    return normalised(x, eps) if gain is None else gain * normalised(x, eps)


class PlainBlock(nn.Module):
    """x += attention(norm(x)), where the layer has it, and x += W_out relu(W_in norm(x))²."""

    def __init__(self, settings, index):
        super().__init__()
        width, hidden = settings["width"], settings["mlp_ratio"] * settings["width"]
        self.settings, self.index = settings, index
        self.attends = index not in settings["layers_without_attention"]
        self.attention_gain = self.qkv_bias = self.attention_out_bias = None
        if self.attends:
            self.qkv = parameter(3 * width, width)
            self.attention_out = parameter(width, width)
            if settings["norm_gains"]:
                self.attention_gain = parameter(width)
            if settings["biases"]:
                self.qkv_bias, self.attention_out_bias = parameter(3 * width), parameter(width)
        self.mlp_in = parameter(hidden, width)
        self.mlp_out = parameter(width, hidden)
        self.mlp_gain = parameter(width) if settings["norm_gains"] else None
        self.mlp_in_bias = parameter(hidden) if settings["biases"] else None
        self.mlp_out_bias = parameter(width) if settings["biases"] else None

    def forward(self, x, rotation, seen):
        """The new stream [batch, T, width]."""
        eps = self.settings["norm_eps"]
        if self.attends:
            heads = self.heads(scaled_norm(x, self.attention_gain, eps), rotation, seen)
            x = x + functional.linear(heads, self.attention_out, self.attention_out_bias)
        hidden = functional.linear(scaled_norm(x, self.mlp_gain, eps), self.mlp_in, self.mlp_in_bias).relu().square()
        return x + functional.linear(hidden, self.mlp_out, self.mlp_out_bias)

    def heads(self, x, rotation, seen):
        """Their outputs side by side [batch, T, width]."""
        count, size = self.settings["heads"], self.settings["head_dim"]
        split = functional.linear(x, self.qkv, self.qkv_bias).unflatten(-1, (3, count, size))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, T, size]
        queries, keys = (rotation(normalised_head(x, self.settings, self.index)) for x in (queries, keys))
        scores = queries @ keys.transpose(-1, -2) * attention_scale(self.settings, self.index)
        scores = scores.masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)


class PlainNanorunForCausalLM(NanorunModel):
    """Models with model.residual = "plain"."""

    def __init__(self, config):
        super().__init__(config)
        settings = self.settings
        self.block = nn.ModuleList(PlainBlock(settings, index) for index in range(settings["layers"]))
        self.embedding_gain = self.final_gain = None
        if settings["norm_gains"]:
            self.final_gain = parameter(settings["width"])
            if settings["embedding_norm"]:
                self.embedding_gain = parameter(settings["width"])
        self.head_bias = parameter(self.head.shape[0]) if settings["head_bias"] else None
        self.post_init()

    def stream(self, input_ids):
        settings = self.settings
        documents, kind = self.documents(input_ids), self.config.window["kind"]
        seen = {letter: visible(documents, kind, reach) for letter, reach in windows_of(self.config).items()}
        x = functional.embedding(input_ids, self.embedding)
        if settings["embedding_norm"]:
            x = scaled_norm(x, self.embedding_gain, settings["norm_eps"])
        rotation = Rotation(settings, torch.arange(input_ids.shape[1]), x)
        for block, letter in zip(self.block, letters_of(self.config)):
            x = block(x, rotation, seen[letter])
        return x

    def head_logits(self, x):
        return functional.linear(scaled_norm(x, self.final_gain, self.settings["norm_eps"]), self.head, self.head_bias)
