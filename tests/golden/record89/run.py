"""Training and its results."""

import resource
import time

import torch

from reference import norms

from . import data, parameters, schedule
from .config import as_dictionary
from .fp8 import Products
from .mlp import Fp8State
from .model import Model
from .optimizer import Optimizer


class Run:
    def __init__(self, c, shards, prefixes, dtype, values=None):
        """values: name -> array where the start is not that of the seed."""
        self.c, self.next_step = c, 0
        self.p = parameters.tensors(parameters.initial_values(c) if values is None else values, dtype)
        self.model = Model(c, self.p, prefixes)
        self.optimizer = Optimizer(c, self.p)
        self.stream = data.Stream(shards, c.end_of_text)
        self.fp8 = Fp8State(c, self.p) if c.fp8_mlp else None
        if c.fp8_mlp_product is not None or c.fp8_qkv_product is not None:
            self.fp8 = Products(c, self.p)

    def gradients(self, sequences, settings):
        """(sum of the losses, name -> G)"""
        for p in self.p.values():
            p.grad = None
        total = 0.0
        for index, sequence in enumerate(sequences):
            loss = self.model.loss(sequence, settings, fp8=self.fp8, index=index)
            loss.backward()
            total += loss.item()
        zero = {n: torch.zeros_like(p) for n, p in self.p.items() if p.grad is None}
        return total, {n: zero[n] if n in zero else p.grad / self.c.gradient_divisor for n, p in self.p.items()}

    def step(self):
        """One step; (loss per token, gradients)."""
        c, step = self.c, self.next_step
        stage = c.stages[schedule.stage_index(c, step)]
        sequences = self.stream.step(c.sequences, stage.length, stage.longest)
        self.sequences = sequences
        total, gradients = self.gradients(sequences, schedule.settings(c, step))
        self.optimizer.step(step, gradients)
        if self.fp8:
            self.fp8.after_update(step)
        self.next_step = step + 1
        return total / (c.sequences * stage.length), gradients

    @torch.no_grad()
    def validate(self, tokens, count, length):
        """Mean loss of the next token, before the update of self.next_step."""
        settings = schedule.validation_settings(self.c, self.next_step)
        total = sum(self.model.loss(sequence, settings, training=False).item()
                    for sequence in data.plain_sequences(tokens, count, length))
        return total / (count * length)

    @torch.no_grad()
    def stream_norms(self):
        """Norms of the streams of the next step's first sequence; neither data nor scales move on."""
        c, stage = self.c, self.c.stages[schedule.stage_index(self.c, self.next_step)]
        copy = data.Stream(self.stream.shards, c.end_of_text, self.stream.shard, self.stream.document)
        kept = self.fp8.kept() if self.fp8 else None
        self.model.trace = {}
        sequence = copy.step(c.sequences, stage.length, stage.longest)[0]
        self.model.loss(sequence, schedule.settings(c, self.next_step), fp8=self.fp8)
        trace, self.model.trace = self.model.trace, None
        if self.fp8:
            self.fp8.put_back(kept)
        return norms(trace)


def train(c, shards, validation, prefixes, dtype, steps, gradient_steps, validation_steps, values=None, progress=print,
          sequences=False, timing=False):
    """The results as a dictionary. validation: (tokens, sequences, length). sequences: with all training tokens."""
    run, seconds = Run(c, shards, prefixes, dtype, values), []
    result = {"config": as_dictionary(c), "prefix_table": [int(p) for p in prefixes],
              "initial_norms": norms(run.p), "stream_norms": {}, "gradient_norms": {}, "losses": [],
              "validation_losses": {}, "cursors": []}
    for step in range(steps + 1):
        if step in validation_steps:
            result["validation_losses"][step] = run.validate(*validation)
        if step == steps:
            break
        if step in gradient_steps:
            result["stream_norms"][step] = run.stream_norms()
        start = time.perf_counter()
        loss, gradients = run.step()
        seconds.append(time.perf_counter() - start)
        if step in gradient_steps:
            result["gradient_norms"][step] = norms(gradients)
        result["losses"].append(loss)
        if sequences:
            result.setdefault("sequences", []).append(data.rows(run.sequences))
        result["cursors"].append([run.stream.shard, run.stream.document])
        progress(f"step {step} loss {loss:.9f}")
    result["final_norms"] = norms(run.p)
    if timing:  # all steps of the config are alike; the first one allocates memory and is left out if there are others
        counted = seconds[1:] or seconds
        result["tokens_per_second"] = len(counted) * c.sequences * c.stages[0].length / sum(counted)
        result["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result, run
