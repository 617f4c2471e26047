"""Pure functions of the step: stage, learning rate, momentum, loss weights, windows."""

import math
from dataclasses import dataclass
from itertools import accumulate


def boundaries(c):
    """Half-open step ranges of the stages, the extension last."""
    ends = [round(share * c.steps) for share in accumulate(stage.share for stage in c.stages[:-1])]
    if ends[-1] != c.steps:
        raise SystemExit("config: the shares of the stages must sum to 1")
    starts = [0, *ends]
    return list(zip(starts, [*ends, c.total_steps]))


def stage_index(c, step):
    """The steps behind the last one belong to the last stage."""
    for index, (_, end) in enumerate(boundaries(c)):
        if step < end:
            return index
    return len(c.stages) - 1


def position_in_stage(c, step):
    """In [0, 1) within the run, 1 behind it."""
    begin, end = boundaries(c)[stage_index(c, step)]
    return (step - begin) / (end - begin) if step < end else 1.0


def between(a, b, t):
    return a + (b - a) * t


def lr_factor(c, step):
    factor = c.stages[stage_index(c, step)].lr
    begin = int(c.steps * (1 - c.cooldown))
    if step < begin:
        return factor
    return between(factor, c.final_lr, min(1.0, (step - begin) / (c.steps - begin)))


def momentum(c, step):
    cooldown = c.total_steps - c.momentum_cooldown
    if step < c.momentum_warmup:
        return between(c.momentum_first, c.momentum_last, step / c.momentum_warmup)
    if step > cooldown:
        return between(c.momentum_last, c.momentum_first, (step - cooldown) / c.momentum_cooldown)
    return c.momentum_last


def target_weights(c, step):
    first, last = c.stages[stage_index(c, step)].weights
    t = position_in_stage(c, step)
    return [between(a, b, t) for a, b in zip(first, last, strict=True)]


def prefix_weight(c, step):
    return between(*c.stages[stage_index(c, step)].prefix, position_in_stage(c, step))


def split_step(c):
    """After the Adam update of this step the embedding goes its own way; the steps number updates of period 2."""
    if not c.tied or c.split_stage is None:
        return None
    step = boundaries(c)[c.split_stage][0]
    while not adam_step(c, step):
        step += 1
    return step


def adam_step(c, step, group=None):
    """Whether Adam updates a group at the end of a step; without one, those that have no late period."""
    period = c.late_period if late(c, step, group) else c.adam_period
    return step % period == period - 1


def late(c, step, group):
    return group in c.late_groups and step >= c.late_from


@dataclass(frozen=True)
class Rotary:
    """Angular frequencies of the turning pairs and the factor of the scores."""
    frequencies: tuple
    scale: float


def rotary_at(c, step, narrow=False):
    """YaRN acts at the start of every stage whose long window differs from the one before."""
    count = c.narrow_frequencies if narrow else c.frequencies
    f = [c.rotary_base ** (-j / (count - 1) if count > 1 else 0.0) for j in range(count)]
    scale = c.narrow_scale if narrow else c.attention_scale
    for before, after in zip(c.stages, c.stages[1:stage_index(c, step) + 1]):
        old, new = before.window_long, after.window_long
        if old == new or not c.yarn:
            continue
        f = [stretched(c, w, old, new) for w in f]
        scale *= 1 + c.yarn_scale * math.log(new / old)
    return Rotary(tuple(f), scale)


def stretched(c, frequency, old, new):
    turns = old * frequency / (2 * math.pi)
    kept = min(max((turns - c.yarn_alpha) / (c.yarn_beta - c.yarn_alpha), 0.0), 1.0)
    return frequency * between(old / new, 1.0, kept)


@dataclass(frozen=True)
class StepSettings:
    """What the model needs to know of a step."""
    rotary: Rotary
    narrow_rotary: Rotary  # of layers whose Q and K are narrower than head_dim
    window_short: int
    window_long: int
    weights: list
    prefix: float
    step: int
    candidates: int
    attention_document: int | None = None


def settings(c, step):
    stage = c.stages[stage_index(c, step)]
    return StepSettings(rotary_at(c, step), rotary_at(c, step, narrow=True), stage.window_short, stage.window_long, target_weights(c, step),
                        prefix_weight(c, step), step, stage.candidates, stage.attention_document)


def validation_settings(c, step):
    """The last validation alone has its own long window, without YaRN."""
    s = settings(c, step)
    long = c.final_window_long if step == c.total_steps else s.window_long
    return StepSettings(s.rotary, s.narrow_rotary, s.window_short, long, [1.0], 0.0, step, 0)
