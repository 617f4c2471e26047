"""What the tests of record89/ share."""

from dataclasses import replace

import torch

from record89 import data
from record89.config import CONFIGS, Config
from record89.run import Run

RECORD = Config()
ALIVE = CONFIGS["mini_alive"]
EARLIER = replace(ALIVE, gate_nets="scalars", skip_gate=True, dc_layers=(), attention_gate_layers=(0, 1, 3, 4),
                  value_layers_gated_by_input=(3,))


def shards_of(c):
    return [data.synthetic_documents(data.SHARD_TOKENS, c.vocabulary, c.end_of_text, seed) for seed in (89, 90)]


def run_of(c, dtype=torch.float64, values=None):
    return Run(c, shards_of(c), data.synthetic_prefixes(c.vocabulary, c.padded_vocabulary), dtype, values)


def losses_of(c, steps, dtype=torch.float64):
    run = run_of(c, dtype)
    return [run.step()[0] for _ in range(steps)]


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
