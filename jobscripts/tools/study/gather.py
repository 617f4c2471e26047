"""Measurements of runs, from their summary.json and trace.h5, and the table of them.

A step lasts as long as on its slowest rank. Of the counted steps of a run, the middle half by time are averaged; so are
the phases, whose times therefore add up. Of the repeats of a rank count the one with the median step time stands
for it.
"""

import csv
import io
from dataclasses import dataclass

import numpy as np
import tool
from trace_file import SUMS, extremes, mean_over_ranks, quantiles_of, read_trace

from . import plan
from .launch import finished

# In the order of the step: each ends the waiting of faster ranks that the one before has left over.
COLLECTIVES = ("sync", "reduce_gradients", "gather_weights")
TRANSFERS = ("reduce_gradients", "gather_weights")  # phases that send gradients and weights, as /communication has them


@dataclass
class Measurement:
    """One finished run. Times are seconds per step, means over the middle half of the counted steps."""

    run: object
    tokens: float  # tokens of a step, mean over the steps whose times are averaged
    step: float
    phases: dict  # phase -> mean over ranks
    path: dict  # computing, muon, adam: slowest rank of each step; collectives: quickest rank, who waits least
    work: np.ndarray  # outside of collectives, of each rank; where the trace has groups of ranks, quantiles of each
    work_mean: float  # over the ranks
    slowest: int  # rank with most of it; where the trace has groups, the one that has most in most steps
    slowest_share: float  # share of the counted steps in which that rank was the slowest
    overlap: float  # share of the communication that ran beside computing; nan without any
    between: float  # share of the communication that went between nodes; nan without any
    provenance: dict  # text by name; empty in runs of earlier programs
    hosts: int  # machines of the ranks; 0 in runs of earlier programs
    gpus: list  # what read_gpu() returns, by rank or by group of ranks; empty on CPUs
    gpu_looks: int  # steps in which the run looked at them

    @property
    def ranks(self):
        return self.run.ranks

    @property
    def rate(self):
        """Tokens per second."""
        return self.tokens / self.step

    @property
    def transfer(self):
        """Communication without the waiting for slower ranks, seconds per step."""
        return sum(self.path[name] for name in COLLECTIVES)

    @property
    def transfer_between(self):
        """The part of `transfer` between nodes: computing waits for a collective between nodes as long, by its own
        time, as for one inside them."""
        return self.between * sum(self.path[name] for name in TRANSFERS) if self.between > 0 else 0.0

    @property
    def waiting(self):
        """Waiting for slower ranks in collectives, mean over the ranks, seconds per step."""
        return sum(self.phases.get(name, 0) for name in COLLECTIVES) - self.transfer

    @property
    def computing(self):
        """Everything else, mean over the ranks, seconds per step."""
        return sum(self.phases.values()) - self.transfer - self.waiting

    @property
    def mean_computing(self):
        """`computing` without Muon and Adam: what `path` has of the slowest rank, mean over the ranks."""
        return sum(seconds for name, seconds in self.phases.items() if name not in SUMS["computing"])

    @property
    def spread(self):
        """(most - least) / mean over the ranks of the time outside of collectives."""
        return (self.work.max() - self.work.min()) / self.work_mean

    @property
    def excess(self):
        """How much more time than the mean the slowest rank spends outside of collectives: a share of the mean."""
        return float(self.work.max() / self.work_mean - 1)


def middle_half(times):
    """Indices of the steps from the first to the third quartile of time."""
    quarter = len(times) // 4
    return np.sort(np.argsort(times, kind="stable")[quarter:len(times) - quarter])


def critical_path(trace, rows):
    """The mean over these rows of what each part of a step takes on the rank that determines it."""
    path = {name: float(extremes(trace, name)[1][rows].mean()) for name in ("computing", "muon", "adam")}
    return path | {name: float(extremes(trace, name)[0][rows].mean()) for name in COLLECTIVES}


def work_of(trace, rows):
    """`work`, `work_mean`, `slowest` and `slowest_share` of a Measurement."""
    parts = [i for i, name in enumerate(trace["phases"]) if name not in SUMS["work"]]
    seconds = trace["seconds"][rows][:, :, parts].sum(axis=2).filled(0)  # [rows, columns]
    mean = float((seconds * trace["ranks_of"][rows]).sum(axis=1).mean() / trace["ranks"][rows][0])
    if not trace["grouped"][rows].any():
        work = seconds[:, :trace["ranks"][rows][0]]
        slowest = int(work.mean(axis=0).argmax())
        return work.mean(axis=0), mean, slowest, float((work.argmax(axis=1) == slowest).mean())
    quantiles = quantiles_of(trace, "work")[rows]
    slowest = trace["slowest"][rows, quantiles[:, :, -1].argmax(axis=1), trace["quantities"].index("work")]
    named, steps = np.unique(slowest, return_counts=True)
    return quantiles.mean(axis=0).compressed(), mean, int(named[steps.argmax()]), float(steps.max() / len(rows))


def measure_overlap(trace, rows):
    """Share of the communication that ran beside computing, in the given rows of trace.h5; nan without communication.
    /communication has the time of all of it; the phases have the part that computing waited for."""
    total = mean_over_ranks(trace, trace["communication"])[rows].sum()
    parts = [trace["phases"].index(name) for name in TRANSFERS]
    exposed = mean_over_ranks(trace, trace["seconds"])[rows][:, parts].sum()
    return round(max(0.0, 1 - exposed / total), 6) if total > 0 else float("nan")


def measure_between(trace, rows):
    """Share of the communication in these rows that went between nodes; nan without communication."""
    total, between = (mean_over_ranks(trace, trace[name])[rows].sum()
                      for name in ("communication", "communication_between"))
    return float(between / total) if total > 0 else float("nan")


def count_hosts(path):
    """Number of machines that a summary.json names; 0 in earlier programs."""
    facts = tool.read_json(path).get("provenance")
    hosts = facts.get("hosts") if isinstance(facts, dict) else None
    return len(hosts) if isinstance(hosts, dict) else 0


def read_provenance(path):
    """The provenance of a summary.json, each value as text; of hosts and devices only the names. Empty in earlier
    programs."""
    summary = tool.read_json(path)
    if "provenance" not in summary:
        return {}
    facts = tool.field(summary, "provenance", dict, path)
    return {name: ", ".join(value) if isinstance(value, dict) else str(value) for name, value in facts.items()}


def read_gpu(gpu, rank, path):
    """What a summary.json says of the GPU of a rank, or of those of a group of ranks: figures by name; `slowest`, (mean
    clock, rank), or None where no clock is known; `fastest`, the highest mean clock; and `throttled`, for each reason
    the number of ranks and (looks, rank) of those with the most looks."""
    tool.require(gpu, dict, path, "gpus")
    figures = {key: tool.field(gpu, key, float, path, least=0)
               for key in ("min_clock_mhz", "avg_clock_mhz", "max_power_watts")}
    looks, clock = tool.field(gpu, "throttled", dict, path), figures["avg_clock_mhz"]
    if "ranks" in gpu:
        slowest, fastest = read_extremes(gpu, path) if clock > 0 else (None, 0)
        return figures | {"slowest": slowest, "fastest": fastest, "throttled": {
            name: read_throttled(gpu, name, path) for name in looks}}
    return figures | {"slowest": (clock, rank) if clock > 0 else None, "fastest": clock, "throttled": {
        name: (1, [(tool.field(looks, name, int, path), rank)]) for name in looks}}


def read_extremes(group, path):
    """Mean clock and rank of the slowest GPU of a group, and mean clock of the fastest."""
    slow, fast = (tool.field(group, key, dict, path) for key in ("slowest", "fastest"))
    clocks = [tool.field(gpu, "avg_clock_mhz", float, path, least=0) for gpu in (slow, fast)]
    return (clocks[0], tool.field(slow, "rank", int, path, least=0)), clocks[1]


def read_throttled(group, name, path):
    """How many ranks of a group were throttled for a reason, and (looks, rank) of those with the most looks."""
    found = tool.field(tool.field(group, "throttled_ranks", dict, path), name, dict, path)
    most = [tool.require(one, dict, path, name) for one in tool.field(found, "most", list, path)]
    return tool.field(found, "ranks", int, path, least=1), [
        (tool.field(one, "looks", int, path), tool.field(one, "rank", int, path, least=0)) for one in most]


def read_gpus(path):
    """What a summary.json says of the ranks' GPUs, and in how many steps the run looked at them."""
    summary = tool.read_json(path)
    if "gpus" not in summary:
        return [], 0
    gpus = [read_gpu(gpu, rank, path) for rank, gpu in enumerate(tool.field(summary, "gpus", list, path))]
    return gpus, tool.field(summary, "gpu_looks", int, path, least=1)


def measure(run, steps, first, end):
    """The Measurement of a finished run of `steps` steps, of which those from `first` to before `end` count. Throws
    ToolError."""
    path = run.folder / "trace.h5"
    trace = read_trace(path)
    if len(trace["step"]) != steps or any(trace["ranks"] != run.ranks):
        raise tool.ToolError(f"{path}: holds {len(trace['step'])} steps of {steps}")
    phases = trace["phases"]
    if trace["grouped"].any() and not trace["grouped"].all():
        raise tool.ToolError(f"{path}: some steps have columns for ranks, others for groups of ranks")
    times = extremes(trace, "step")[1][first:end]
    middle = middle_half(times)
    rows = first + middle
    means = mean_over_ranks(trace, trace["seconds"])[rows]  # [steps, phases]
    work, work_mean, slowest, slowest_share = work_of(trace, rows)
    if not work.min() > 0:
        raise tool.ToolError(f"{path}: a rank that takes no time")
    gpus, gpu_looks = read_gpus(run.folder / "summary.json")
    return Measurement(
        run=run, tokens=float(trace["tokens"][rows].mean()), step=float(times[middle].mean()),
        phases={name: float(means[:, i].mean()) for i, name in enumerate(phases) if name not in SUMS["step"]},
        path=critical_path(trace, rows), work=work, work_mean=work_mean, slowest=slowest, slowest_share=slowest_share,
        overlap=measure_overlap(trace, rows), between=measure_between(trace, rows),
        provenance=read_provenance(run.folder / "summary.json"),
        hosts=count_hosts(run.folder / "summary.json"),
        gpus=gpus, gpu_looks=gpu_looks)


def gather(study):
    """Returns the measurements of all finished runs of a study, and (run, why) for each other run. Throws StudyError if
    the steps of study.stage are not known."""
    measurements, missing = [], []
    plans = plan.read_plans(study.folder)[0] if study.stage >= 0 else {}
    for run in study.runs():
        if not finished(run, study.steps):
            missing.append((run, "not finished" if run.log.exists() else "not started"))
            continue
        counted = plan.counted_steps(study, plans.get(run.ranks))
        try:
            measurements.append(measure(run, study.steps, *counted))
            if measurements[0].phases.keys() != measurements[-1].phases.keys():
                raise tool.ToolError(f"{run.folder}: other phases than in {measurements.pop(0).run.folder}")
        except tool.ToolError as error:
            missing.append((run, f"unreadable: {error}; remove {run.folder} to measure it again"))
    return sorted(measurements, key=lambda m: (m.ranks, m.run.repeat)), missing


def representatives(measurements):
    """One measurement for each rank count, by ascending rank count: the repeat with the (lower) median step time."""
    groups = {}
    for m in measurements:
        groups.setdefault(m.ranks, []).append(m)
    return [sorted(group, key=lambda m: m.step)[(len(group) - 1) // 2] for _, group in sorted(groups.items())]


def speed_up(m, base):
    """The rate of `m` in units of one rank, by the rate of `base`: perfect scaling gives m.ranks."""
    return base.ranks * m.rate / base.rate


def table(measurements):
    """Rows of the CSV: a header, then one row a run. Speed-ups refer to the median run on the fewest ranks."""
    phases = list(measurements[0].phases)
    base = representatives(measurements)[0]
    rows = [["ranks", "repeat", "sequences", "tokens", "step_seconds", "tokens_per_second", "speed_up", "efficiency",
             "computing_seconds", "communication_seconds", "waiting_seconds", "overlap", "between", "spread",
             "slowest_rank", "slowest_share", *(f"{name}_seconds" for name in phases)]]
    for m in measurements:
        gain = speed_up(m, base)
        values = [m.step, m.rate, gain, gain / m.ranks, m.computing, m.transfer, m.waiting, m.overlap, m.between,
                  m.spread]
        rows.append([m.ranks, m.run.repeat, m.run.sequences, int(m.tokens), *(f"{v:.6g}" for v in values), m.slowest,
                     f"{m.slowest_share:.3f}", *(f"{m.phases[name]:.6g}" for name in phases)])
    return rows


def write_csv(path, rows):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    tool.write(path, text.getvalue())
