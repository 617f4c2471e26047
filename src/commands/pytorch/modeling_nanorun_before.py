"""A language model with model.residual = "before", such as record 18 of GPT-2 Medium in the NanoGPT speedrun, in PyTorch:
the whole forward pass, without a cache of keys and values."""

import importlib

from torch.nn import functional

if __package__:
    from .modeling_nanorun import normalised, parameter
    from .modeling_nanorun_scaled import ScaledBlock, ScaledNanorunForCausalLM, injections
else:  # as in modeling_nanorun.py
    common, scaled = importlib.import_module("modeling_nanorun"), importlib.import_module("modeling_nanorun_scaled")
    normalised, parameter = common.normalised, common.parameter
    ScaledBlock, ScaledNanorunForCausalLM, injections = (
        scaled.ScaledBlock, scaled.ScaledNanorunForCausalLM, scaled.injections)


class BeforeBlock(ScaledBlock):
    """One mix before attention, to whose sum the branches are added."""

    def add_factors(self, settings, layer):
        self.residual_mix, self.injection = parameter(1), parameter(injections(settings))

    def before(self, x, p):
        x = self.residual_mix * super().before(x, p) + self.injection[:1] * p.x0
        return x if p.second is None else x + self.injection[1:] * p.second

    def after_attention(self, x, out, p):
        return x + out

    def after_mlp(self, x, out, p):
        return x + out


class BeforeNanorunForCausalLM(ScaledNanorunForCausalLM):
    """Models with model.residual = "before"."""

    ordinary_block = BeforeBlock

    def __init__(self, config):
        super().__init__(config)
        settings = self.settings
        if settings["second_embedding"]:
            self.embedding2 = parameter(settings["vocabulary"], settings["width"])
        if settings["backout_from"] >= 0:
            self.backout = parameter(1)

    def second_stream(self, input_ids):
        """What layers add beside x0: the norm of a second embedding, or rows of bigrams."""
        if not self.settings["second_embedding"]:
            return super().second_stream(input_ids)
        return normalised(functional.embedding(input_ids, self.embedding2), self.settings["norm_eps"])

    def first_stream(self, p):
        return p.x0

    def last_mix(self, x, p):
        source = self.settings["backout_from"]
        return x - self.backout * p.layer_inputs[source + 1] if source >= 0 else x
