"""What is computed: one field per mechanism, each with its own switch. Tokens and layers count from 0."""

import ast
import math
from dataclasses import asdict, dataclass, field, fields, replace


from .fp8 import DELAYED_MLP, FIXED_MLP, FIXED_QKV, Product


@dataclass(frozen=True)
class Stage:
    """share is of the scheduled steps, None for the extension; weights and prefix go linearly from a to b."""
    share: float | None
    length: int  # tokens of a sequence
    longest: int  # tokens of a document; what is longer is cut
    window_short: int  # a query sees so many keys before its own
    window_long: int
    lr: float
    weights: tuple = ((1.0,), (1.0,))  # of the targets t+1, t+2, ... at the start and at the end of the stage
    prefix: tuple = (0.0, 0.0)
    candidates: int = 0  # columns of the head that the softmax of a training sequence covers; 0: all
    attention_document: int | None = None  # tokens of a document after which attention begins anew, in training


RECORD_STAGES = (
    Stage(1 / 3, 16384, 896, 128, 384, 1.0, ((1.0, 0.5, 0.25), (1.0, 0.5, 0.0)), (0.25, 0.25)),
    Stage(1 / 3, 32768, 2048, 384, 896, 1.52, ((1.0, 0.5), (1.0, 0.0)), (0.25, 0.0)),
    Stage(1 / 3, 49152, 2048, 640, 1408, 1.73),
    Stage(None, 49152, 2048, 768, 1664, 1.0),
)


@dataclass(frozen=True)
class AdamGroup:
    factor: float
    beta1: float
    beta2: float
    decay: float = 0.0


def record_groups():
    return {
        "head": AdamGroup(1, 0.5, 0.95, 150),
        "embedding": AdamGroup(1, 0.5, 0.95, 150),
        "value_embedding": AdamGroup(75, 0.75, 0.95, 5),
        "bigram": AdamGroup(75, 0.75, 0.95, 5),
        "factor": AdamGroup(5, 0.9, 0.99),
        "smear_gate": AdamGroup(0.01, 0.9, 0.99),
        "value_gate": AdamGroup(1, 0.9, 0.99, 1),
        "post": AdamGroup(1, 0.9, 0.95),
        "residual": AdamGroup(5, 0.9, 0.95),
        "mudd_net": AdamGroup(0.25, 0.9, 0.99, 1),
        "mudd_bias": AdamGroup(0.25, 0.9, 0.99),
        "gate_net": AdamGroup(0.1, 0.9, 0.99, 1),
        "gate_bias": AdamGroup(0.1, 0.9, 0.99),
        "attention_gate": AdamGroup(1, 0.9, 0.99, 1),
        "scalar": AdamGroup(1, 0.9, 0.95),
        "skip_gate": AdamGroup(0.05, 0.9, 0.99),
    }


@dataclass(frozen=True)
class Config:
    """The defaults are record 89."""
    seed: int = 1

    # sizes
    layers: int = 11
    width: int = 768
    heads: int = 6
    head_dim: int = 128
    hidden: int = 3072
    vocabulary: int = 50257
    padding: int = 128  # rows of embedding and head are a multiple of it
    end_of_text: int = 50256
    frequencies: int = 32  # turning pairs of a head; as many pairs again stand still
    net_hidden: int = 64
    gate_inputs: int = 12

    # topology
    norm_eps: float = 2.0**-23
    layers_without_attention: tuple = (6,)
    skip: tuple | None = (3, 6)  # (source, layer without attention that adds it)
    skip_gate: bool = False  # with gate_nets "scalars": 2 sigmoid(<w, x0>) is a factor of the skip
    late_source: int | None = 7  # layers behind this one attend from its output
    residual_start: float = math.sqrt(1.1)
    x0_injection: bool = True

    # attention
    long_layers: tuple = (3, 10)
    paired_layers: tuple = (0, 2, 5, 9)
    key_offset: bool = True  # in the long layers
    xsa_layers: tuple = (1, 3, 4, 7)
    attention_gate_layers: tuple = (3, 10)
    dc_layers: tuple = (10,)
    dc_window: int = 112  # keys, the query's own included
    dc_eps: float = 1e-6
    attention_scale: float = 0.1
    qk_dims: tuple | None = None  # width of Q and K in the heads of each layer; None: head_dim
    narrow_frequencies: int = 32  # turning pairs of Q and K that are narrower than head_dim
    narrow_scale: float = 0.12  # their attention_scale
    rotary_base: float = 1024
    rotary_pairs: str = "adjacent"  # dims (2j, 2j+1) of the first half; "halves": dims (j, j + D/2), as in record 21
    yarn: bool = True
    yarn_alpha: float = 1
    yarn_beta: float = 32
    yarn_scale: float = 0.2

    # tables
    value_layers: tuple = (1, 2, 8, 9, 10)  # table j serves the j-th of them
    value_layers_gated_by_input: tuple = ()  # those of value_layers whose gate reads the normed input alone
    value_start: float = 0.01
    smear: bool = True
    bigram: bool = True
    bigram_rows: int = 377280
    bigram_columns: int | None = None  # added to the first of the stream; None: as wide as it
    sign_rows: int = 8192  # 0: no signs

    # coefficients: "net", "static" (learned, without input), "constant" (at their start); mudd also "off", gate_nets
    # also "scalars": parameters of their own, as before record 85
    gate_nets: str = "net"
    gate_net_split: int = 4  # the second net reads the stream before this layer and serves the layers from it on
    gate_net_scale: float = 0.1
    mudd: str = "net"
    mudd_scale: float = 0.1
    mudd_value_scale: float = 1  # further factor on the streams that the values of the last layer take up
    mudd_backout: float = 0.5  # mu1 starts at minus this

    # head and loss
    head_start: float = 0.005
    tied: bool = True
    split_stage: int | None = 2  # None: tied to the end
    softcap: str = "sigmoid"  # 23 sigmoid((z + 5) / 7.5); "tanh": 15 tanh(z / 15)
    surplus_weights: bool = True  # rows whose targets lie behind the end still pull with the missing weights

    # starts
    init_scale: float = math.sqrt(3) * 0.5
    mlp_out_transposed: bool = True  # W2 is [hidden, d], else [d, hidden]
    zero_starts: bool = True  # False: tensors that start at zero start at random, so that every gradient is alive

    # schedule
    steps: int = 1270
    extension: int = 15
    sequences: int = 8
    stages: tuple = RECORD_STAGES
    cooldown: float = 0.6
    final_lr: float = 0.15
    final_window_long: int = 2560  # long window of the last validation
    momentum_first: float = 0.85
    momentum_last: float = 0.95
    momentum_warmup: int = 300
    momentum_cooldown: int = 50

    # optimizer
    gradient_divisor: float = 8  # G = the sum over all tokens of a step divided by this
    matrix_lr: float = 0.023
    matrix_decay: float = 1.2
    mlp_out_factor: float = 2
    slow_momentum: float | None = None  # decay of a second momentum
    fast_momentum: float = 0.85  # decay of the first, from mix_from on
    momentum_mix: float = 1.0  # weight of the first, from mix_from on
    mix_from: int = 0
    orthogonalisation: str = "polar_express"  # "six_maps", or "newton_schulz" as in record 21
    second_moment: bool = True
    second_moment_beta: float = 0.9
    cautious_decay: bool = True
    heads_per_block: int = 2  # blocks of W_q and W_k that are orthogonalised apart; `heads`: the whole matrix
    adam_lr: float = 0.008
    adam_eps: float = 1e-10
    adam_decay: float = 0.005
    adam_period: int = 2
    late_groups: tuple = ()  # groups that are updated with late_period from step late_from on
    late_period: int = 4
    late_from: int = 0
    groups: dict = field(default_factory=record_groups)
    bf16_masters: tuple = ()  # groups whose parameters are rounded to bf16, at the start and after each update
    bf16_moments: tuple = ()  # groups whose moments are, after the update that they gave

    # precision
    fp8_head: bool = False
    head_scale_x: float = 4.48
    head_scale_w: float = 280.0
    head_scale_g: float = 448 / 0.75
    fp8_mlp: bool = False
    fp8_mlp_shared: bool = False  # one scale of h for all sequences of a step, from all of the step before
    mlp_out_present_scales: int = 16  # the first updates quantise W2 with its present maximum
    fp8_mlp_product: Product | None = None  # the MLP in both passes, in the place of fp8_mlp
    fp8_qkv_product: Product | None = None
    rounding: bool = False  # the bf16 roundings that record89.md lists

    @property
    def padded_vocabulary(self):
        return -(-self.vocabulary // self.padding) * self.padding

    @property
    def total_steps(self):
        return self.steps + self.extension


def check(config):
    c = config
    if c.heads * c.head_dim != c.width:
        raise SystemExit("config: heads * head_dim must be width")
    if 4 * c.frequencies != c.head_dim:
        raise SystemExit("config: frequencies must be head_dim / 4")
    if c.qk_dims is not None and max(c.qk_dims) > c.head_dim:
        raise SystemExit("config: qk_dims must be at most head_dim")
    if set(c.xsa_layers) & set(c.paired_layers):
        raise SystemExit("config: paired layers have no XSA")
    if set(c.dc_layers) & set(c.paired_layers):
        raise SystemExit("config: paired layers have no DC")
    if c.mudd != "off" and c.layers - 1 in c.layers_without_attention:
        raise SystemExit("config: mudd needs attention in the last layer")
    if c.gate_nets == "scalars" and c.dc_layers:
        raise SystemExit("config: DC needs coefficients per token")
    if c.skip_gate and (c.gate_nets != "scalars" or c.skip is None):
        raise SystemExit("config: skip_gate needs a skip and gate_nets = scalars")
    if sum(stage.share is None for stage in c.stages) != 1 or c.stages[-1].share is not None:
        raise SystemExit("config: the last stage, and no other, is the extension with share None")
    return c


# Record 89 with every mechanism, small enough for a golden file. With 79000 rows, 27191 (rows - 1) is a negative int32.
TINY_STAGES = (
    Stage(1 / 3, 64, 24, 6, 16, 1.0, ((1.0, 0.5, 0.25), (1.0, 0.5, 0.0)), (0.25, 0.25)),
    Stage(1 / 3, 128, 48, 12, 28, 1.52, ((1.0, 0.5), (1.0, 0.0)), (0.25, 0.0)),
    Stage(1 / 3, 192, 48, 18, 40, 1.73),
    Stage(None, 192, 48, 22, 48, 1.0),
)
TINY = Config(
    width=48, head_dim=8, frequencies=2, hidden=192, vocabulary=61, padding=64, end_of_text=60, net_hidden=16,
    dc_window=10, bigram_rows=79000, sign_rows=16, steps=18, extension=2, sequences=2, stages=TINY_STAGES,
    final_window_long=64, momentum_warmup=5, momentum_cooldown=4, gradient_divisor=2,
)
# Five layers: each mechanism once, paired heads twice.
MINI = replace(
    TINY, layers=5, width=24, heads=6, head_dim=4, frequencies=1, hidden=96, layers_without_attention=(2,), skip=(1, 2),
    late_source=3, long_layers=(1, 4), paired_layers=(0, 3), xsa_layers=(1,), attention_gate_layers=(1, 4),
    dc_layers=(4,), value_layers=(1, 3, 4), gate_net_split=3, net_hidden=8, bigram_rows=97,
)
# TINY as nanorun lays it out: sequences of whole attention blocks, its padding, rotary pairs and W2.
BLOCKS = {
    "padding": 128, "rotary_pairs": "halves", "mlp_out_transposed": False, "mlp_out_factor": 4,
    "stages": tuple(replace(stage, length=2 * stage.length) for stage in TINY_STAGES),
}
# What record 81 has otherwise than record 89, its schedule aside: no XSA, signs, DC, prefixes; scalars and gates of
# their own instead of the gate nets. The gates of the paired value layers read their input alone.
RECORD81 = {
    "gate_nets": "scalars", "skip_gate": True, "xsa_layers": (), "dc_layers": (), "sign_rows": 0,
    "attention_gate_layers": (0, 1, 2, 3, 4, 5, 7, 8, 9, 10), "value_layers_gated_by_input": (2, 9),
    "mudd_scale": 0.2 / math.sqrt(3), "mudd_value_scale": 1.15, "mudd_backout": 4.34 * 0.2 / math.sqrt(3),
}


def with_candidates(stages, counts):
    return tuple(replace(stage, candidates=count) for stage, count in zip(stages, counts, strict=True))


def without_prefixes(stages):
    return tuple(replace(stage, prefix=(0.0, 0.0)) for stage in stages)


# The seed is one whose gradients of later steps are well conditioned, see record89.md.
BLOCKS81 = BLOCKS | RECORD81 | {"seed": 12, "stages": without_prefixes(BLOCKS["stages"])}
# The model of the CPU benchmark, as nanorun lays it out: smaller matrices and tables, all stages of one shape.
BENCHMARK = Config(
    width=384, head_dim=64, frequencies=16, hidden=1536, bigram_rows=50304, sequences=2, gradient_divisor=2, steps=4,
    extension=1, momentum_cooldown=0, split_stage=None, rotary_pairs="halves", mlp_out_transposed=False,
    mlp_out_factor=4, stages=tuple(replace(stage, length=2048, longest=896, window_short=128, window_long=384)
                                   for stage in without_prefixes(RECORD_STAGES)),
)
CONFIGS = {
    "record89": Config(),
    "record81": Config(steps=1405, extension=10, bigram_rows=5 * 50304, stages=without_prefixes(RECORD_STAGES),
                       **RECORD81),
    "benchmark": BENCHMARK,
    "tiny": TINY,
    "tiny_alive": replace(TINY, zero_starts=False),
    "tiny_fp8": replace(TINY, zero_starts=False, fp8_head=True, fp8_mlp=True),
    "mini": MINI,
    "blocks": replace(TINY, **BLOCKS),
    "blocks_alive": replace(TINY, zero_starts=False, **BLOCKS),
    "blocks81": replace(TINY, **BLOCKS81),
    "blocks81_alive": replace(TINY, zero_starts=False, **BLOCKS81),
    "blocks_fp8": replace(TINY, zero_starts=False, fp8_mlp=True, fp8_mlp_shared=True, **BLOCKS),
    "blocks_fp8_fixed": replace(TINY, zero_starts=False, fp8_mlp_product=FIXED_MLP, fp8_qkv_product=FIXED_QKV, **BLOCKS),
    "blocks_fp8_delayed": replace(TINY, zero_starts=False, fp8_mlp_product=DELAYED_MLP, **BLOCKS),
    "blocks_fp8_zero": replace(TINY, fp8_mlp_product=FIXED_MLP, **BLOCKS),
    "mini_alive": replace(MINI, zero_starts=False),
    "blocks_wide": replace(TINY, zero_starts=False, width=256, heads=2, head_dim=128, frequencies=32, hidden=1024, **BLOCKS),
}


# From nearly nothing to MINI: each rung adds its mechanisms to the rung before.
PLAIN = replace(
    MINI, zero_starts=False, skip=None, late_source=None, x0_injection=False, paired_layers=(), key_offset=False,
    xsa_layers=(), attention_gate_layers=(), dc_layers=(), yarn=False, value_layers=(), smear=False, bigram=False,
    gate_nets="constant", mudd="off", tied=False, softcap="tanh", mlp_out_transposed=False, mlp_out_factor=1,
    orthogonalisation="newton_schulz", second_moment=False, cautious_decay=False, heads_per_block=6, matrix_decay=0,
    adam_decay=0, adam_period=1,
    stages=tuple(replace(stage, weights=((1.0,), (1.0,)), prefix=(0.0, 0.0)) for stage in TINY_STAGES),
)
RUNGS = {
    "data": {},
    "tied": {"tied": True},
    "loss": {"softcap": "sigmoid", "stages": TINY_STAGES},
    "rotary": {"key_offset": True, "yarn": True},
    "topology": {"skip": MINI.skip, "late_source": MINI.late_source, "x0_injection": True},
    "gates": {"smear": True, "gate_nets": "net", "xsa_layers": MINI.xsa_layers,
              "attention_gate_layers": MINI.attention_gate_layers},
    "tables": {"value_layers": MINI.value_layers, "bigram": True},
    "mudd": {"mudd": "net"},
    "paired": {"paired_layers": MINI.paired_layers},
    "optimizer": {name: getattr(MINI, name) for name in (
        "mlp_out_transposed", "mlp_out_factor", "orthogonalisation", "second_moment", "cautious_decay",
        "heads_per_block", "matrix_decay", "adam_decay", "adam_period")},
    "dc": {"dc_layers": MINI.dc_layers},
}


def climb():
    config = PLAIN
    for number, (name, changes) in enumerate(RUNGS.items(), 1):
        config = replace(config, **changes)
        CONFIGS[f"mini_{number:02}_{name}"] = config


climb()


# blocks_alive with mechanisms switched off, one or a few that belong together, or in their earlier form.
NO_MUDD = {"mudd": "off"}
TABLES = ("head", "embedding", "value_embedding", "bigram")
SCALARS = {"gate_nets": "scalars", "dc_layers": ()}
# Pull request 349 (recipe90.md): T falls again in the last scheduled stage and in the extension, two quarters of the
# second stage have prefix weights of their own, and attention ends within documents.
TAPER_STAGES = (
    BLOCKS["stages"][0],
    replace(BLOCKS["stages"][1], share=1 / 6, weights=((1.0, 0.5), (1.0, 0.25)), prefix=(0.2, 0.2)),
    replace(BLOCKS["stages"][1], share=1 / 6, weights=((1.0, 0.25), (1.0, 0.0)), prefix=(0.1, 0.1)),
    replace(BLOCKS["stages"][2], share=2 / 9, longest=60, attention_document=20),
    replace(BLOCKS["stages"][2], share=1 / 9, length=256, longest=60, attention_document=20, lr=1.4),
    replace(BLOCKS["stages"][3], length=128, longest=60, attention_document=20),
)
AFTER_RECORD89 = {
    "taper": {"stages": TAPER_STAGES, "split_stage": 4, "cooldown": 0.8, "final_lr": 0.2},
    "two_momenta": {"slow_momentum": 0.98, "fast_momentum": 0.8, "momentum_mix": 0.4385, "mix_from": 5,
                    "matrix_decay": 1.5, "momentum_last": 0.93},
    "six_maps": {"orthogonalisation": "six_maps"},
    "late_tables": {"late_groups": ("value_embedding", "bigram"), "late_from": 7},
}
ALL_AFTER_RECORD89 = {name: value for changes in AFTER_RECORD89.values() for name, value in changes.items()}
CONFIGS["blocks_after_wide"] = replace(CONFIGS["blocks_wide"], **ALL_AFTER_RECORD89)
# MLP and QKV in 8 bits in both passes, beside Q and K of the widths that pull request 349 has.
CONFIGS["blocks_fp8_narrow_wide"] = replace(
    CONFIGS["blocks_wide"], seed=3, qk_dims=(64, 64, 64, 128, 64, 64, 0, 64, 64, 64, 128), attention_scale=0.085,
    fp8_mlp_product=FIXED_MLP, fp8_qkv_product=FIXED_QKV)
# Pull request 349 has Q and K of half the width in the layers with the short window, and all of their dims turn. Pull
# request 344 has narrower ones in all layers; half of their dims stand still, and keys take these from the token
# before. A norm over four dims is nearly zero for some tokens, whose gradients are large then. With Polar Express the
# losses of NARROW_EVERYWHERE move by 2e-5, and norms of weights by 2e-4, where its eps of 1e-6 is doubled.
NARROW = {"qk_dims": (4, 4, 4, 8, 4, 4, 0, 4, 4, 4, 8), "narrow_frequencies": 2, "attention_scale": 0.085}
NARROW_EVERYWHERE = {"qk_dims": (4,) * 6 + (0,) + (4,) * 4, "narrow_frequencies": 1,
                     "narrow_scale": 0.1 * math.sqrt(2)}
SWITCHES = {
    "no_paired": {"paired_layers": ()},
    "no_xsa": {"xsa_layers": ()},
    "no_gates": {"attention_gate_layers": ()},
    "no_dc": {"dc_layers": ()},
    "no_key_offset": {"key_offset": False},
    "no_smear": {"smear": False},
    "no_bigram": {"bigram": False},
    "no_yarn": {"yarn": False},
    "untied": {"tied": False},
    "whole_heads": {"heads_per_block": 6},
    "newton_schulz": {"orthogonalisation": "newton_schulz"},
    "no_second_moment": {"second_moment": False},
    "every_step": {"adam_period": 1},
    "no_mudd": NO_MUDD,
    "no_skip": NO_MUDD | {"skip": None},
    "no_late_source": NO_MUDD | {"late_source": None},
    "no_values": NO_MUDD | {"value_layers": ()},
    "scalars": SCALARS,
    "scalars_no_mudd": SCALARS | NO_MUDD,
    "skip_gate": SCALARS | {"skip_gate": True},
    "gated_pairs": {"attention_gate_layers": RECORD81["attention_gate_layers"]},
    "gated_by_input": {"value_layers_gated_by_input": (2, 8)},
    "narrow_bigrams": {"bigram_columns": 20},
    "narrow_bigrams_no_signs": {"bigram_columns": 20, "sign_rows": 0},
    "tanh_softcap": {"softcap": "tanh"},
    "next_token": {"stages": tuple(replace(stage, weights=((1.0,), (1.0,)), prefix=(0.0, 0.0))
                                   for stage in BLOCKS["stages"])},
    "no_decay": {"matrix_decay": 0, "adam_decay": 0},
    "mudd_scales": {"mudd_scale": 0.2, "mudd_value_scale": 1.5, "mudd_backout": -0.25},
    "candidates": {"vocabulary": 500, "stages": with_candidates(BLOCKS["stages"], (128, 256, 384, 0))},
    "bf16_masters": {"bf16_masters": TABLES + ("smear_gate", "value_gate", "mudd_net", "gate_net")},
    "bf16_moments": {"bf16_masters": TABLES, "bf16_moments": TABLES},
    **AFTER_RECORD89,
    "after_record89": ALL_AFTER_RECORD89,
    "narrow": NARROW,
    "narrow_everywhere": NARROW_EVERYWHERE | AFTER_RECORD89["two_momenta"] | AFTER_RECORD89["six_maps"],
    "narrow_after_record89": NARROW | ALL_AFTER_RECORD89,
}


def override(config, texts):
    """Fields from texts name=value, the value in Python's syntax."""
    names = {f.name for f in fields(Config)}
    changes = {}
    for text in texts:
        name, value = text.split("=", 1)
        if name not in names - {"stages", "groups"}:
            raise SystemExit(f"config: no field {name} that a command line may set")
        try:
            changes[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changes[name] = value
    return check(replace(config, **changes))


def as_dictionary(config):
    return asdict(config)
