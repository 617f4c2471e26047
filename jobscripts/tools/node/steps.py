"""The steps of a run of jobscripts/measure_node.sh by stage: their median time, where it goes, and how well the model of
a scaling study predicts them.

Times come from metrics.jsonl. What comes from trace.h5 needs numpy and h5py.
"""

import dataclasses
import math
import statistics

import tool
from metrics import Metrics, tokens_of

# Phases that get a column of their own; the others of a step are summed.
PHASES = ("forward", "head", "backward", "muon", "adam", "reduce_gradients", "gather_weights", "sync")
REST = ("data", "other")


def split(steps, staged):
    """The steps by stage. Steps of one stage have one window and length; without stages all steps belong together."""
    if not staged:
        return [steps]
    stages = []
    for step in steps:
        if not stages or (step["window"], tokens_of(step)) != (stages[-1][-1]["window"], tokens_of(stages[-1][-1])):
            stages.append([])
        stages[-1].append(step)
    return stages


def counted(steps):
    """The steps without the first fifth, and at least without the first one, if there are more."""
    return steps[max(1, len(steps) // 5):] or steps


def read_stages(output):
    """For each stage of the run in a directory: window and tokens of its steps (None where they change), steps, median
    milliseconds, and the steps that count. Throws ToolError."""
    metrics = Metrics(output / "metrics.jsonl")
    metrics.poll()
    if not metrics.steps:
        raise tool.ToolError(f"{metrics.path}: holds no steps")
    for step in metrics.steps:
        if not all(math.isfinite(step.get(key, math.nan)) for key in ("ms", "tokens_per_second", "window")):
            raise tool.ToolError(f"{metrics.path}: step {step['step']} is not whole")
    staged = "stage" in tool.read_toml(output / "deck.toml")
    stages = []
    for steps in split(metrics.steps, staged):
        kept = counted(steps)
        windows, tokens = {int(step["window"]) for step in kept}, {tokens_of(step) for step in kept}
        stages.append({"stage": len(stages) + 1 if staged else None,
                       "window": windows.pop() if len(windows) == 1 else None,
                       "tokens": tokens.pop() if len(tokens) == 1 else None, "steps": len(steps),
                       "step_ms": statistics.median(step["ms"] for step in kept),
                       "counted": [step["step"] for step in kept]})
    return stages


def add_phases(stages, output):
    """Adds to each stage the milliseconds of each phase, means over the ranks and the middle half of the counted
    steps, and the share of communication that computation hides. Throws ToolError where trace.h5 or the modules are
    missing."""
    np = tool.need("h5py", "numpy")
    from study.gather import measure_overlap, middle_half
    from trace_file import mean_over_ranks, read_trace

    trace = read_trace(output / "trace.h5")
    seconds, over_ranks = trace["seconds"].filled(0), mean_over_ranks(trace, trace["seconds"])
    for stage in stages:
        rows = np.flatnonzero(np.isin(trace["step"], np.array(stage["counted"]) - 1))
        if not len(rows):
            continue
        names = [name for name in trace["phases"] if name in PHASES + REST]
        columns = [trace["phases"].index(name) for name in names]
        rows = rows[middle_half(seconds[rows][:, :, columns].sum(axis=2).max(axis=1))]
        means = dict(zip(names, over_ranks[rows][:, columns].mean(axis=0) * 1e3))
        stage["phases_ms"] = {name: float(means[name]) for name in PHASES if name in means}
        stage["phases_ms"]["rest"] = float(sum(means[name] for name in REST if name in means))
        hidden = measure_overlap(trace, rows)
        stage["hidden_share"] = None if hidden != hidden else hidden


def model_errors(study_file, outputs):
    """For each rank count the relative error of the step time that the other rank counts predict. Throws ToolError."""
    tool.need("h5py", "numpy")
    from study import analysis, gather
    from study.study_file import read_study

    study = dataclasses.replace(read_study(study_file), outputs=str(outputs))
    measurements, missing = gather.gather(study)
    if not measurements:
        return {}
    done = analysis.analyse(study, measurements, missing)
    return {point.ranks: error for point, error in zip(done.points, done.errors)}
