"""The page of one run: what ran where, its losses, time and energy, and what to look at first. compare.py writes it.

The times of the phases come from summary.json, as in the log: they count what comes after the last step too, such as
its validation and checkpoint. The slowest rank comes from trace.h5, and so do the phases where the last start
has no summary or made no step; this needs numpy and h5py.
"""

import base64
import datetime
import html
import json
import math
import os
import statistics
from dataclasses import dataclass, field

import page
import tool
from machines import number
from trace_file import COMMUNICATION
from watch import Watched, charts

WARM_UP = 10  # first steps, which the slowest rank is not judged by
NEIGHBOURS = 10  # steps before and behind a step, by whose median it is judged
# Reasons for a low clock that point at cooling or power supply. A GPU at its own power limit is usual.
HEAT = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
# Figures of summary.json: key -> what it is, format, unit, factor.
MERITS = {
    "mfu": ("MFU, with attention", ".1f", " %", 100),
    "mfu_6nd": ("MFU, 6 N D", ".1f", " %", 100),
    "time_to_first_step_seconds": ("start to end of step 1", ",.1f", " s", 1),
    "energy_joules": ("energy of the run", ",.4g", " kJ", 1e-3),
    "joules_per_step": ("energy of a step", ",.4g", " J", 1),
    "joules_per_token": ("energy of a token", ".3g", " mJ", 1e3),
    "tokens_per_wh": ("tokens per Wh", ",.0f", "", 1),
}
# Of a GPU of summary.json: key -> column, unit.
GPU = {"avg_clock_mhz": ("mean clock", " MHz"), "min_clock_mhz": ("lowest", " MHz"),
       "avg_power_watts": ("mean power", " W"), "max_power_watts": ("highest", " W")}


@dataclass
class Gpu:
    """What a run has seen of a GPU."""

    numbers: dict  # by the keys of GPU; nan where they are not known
    throttled: dict  # reason -> looks that found it


@dataclass
class Report:
    """What is known of a run."""

    run: object  # of runs.py
    watched: Watched  # its metrics
    phases: dict = field(default_factory=dict)  # name -> mean, least and most over the ranks, seconds per step
    provenance: dict = field(default_factory=dict)  # as in summary.json
    ranks: int = 0  # 0: not known
    slowest: int | None = None  # rank that spends most time outside of collectives
    excess: float = math.nan  # by which share of the mean it does so
    gpus: list = field(default_factory=list)  # of each rank; empty on CPUs
    further: list = field(default_factory=list)  # further rows of the figures

    @property
    def summary(self):
        return self.run.summary

    def figure(self, key):
        """A number of summary.json; nan where there is none."""
        value = self.summary.get(key)
        return math.nan if value is None else tool.require(value, float, self.run.folder / "summary.json", key)

    def share(self, *names):
        """Share of phases in the whole time; nan where no time is known."""
        total = sum(mean for mean, _, _ in self.phases.values())
        return sum(self.phases[name][0] for name in names if name in self.phases) / total if total else math.nan

    @property
    def step_times(self):
        """Milliseconds of the steps."""
        return [line["ms"] for line in self.watched.metrics.steps if math.isfinite(line.get("ms", math.nan))]

    @property
    def tokens_per_second(self):
        known = self.figure("tokens_per_second")
        return known if math.isfinite(known) else self.watched.last("tokens_per_second")

    @property
    def clocks(self):
        """Mean clocks of the GPUs, MHz, by rank, where they are known."""
        return {rank: gpu.numbers["avg_clock_mhz"] for rank, gpu in enumerate(self.gpus)
                if math.isfinite(gpu.numbers["avg_clock_mhz"])}


# --- What is found ----------------------------------------------------------------------------------------------------


def take_trace(report, path):
    """Takes the slowest rank from a trace.h5, and phases, ranks and provenance for a run without a summary."""
    tool.need("numpy", "h5py")
    import numpy as np
    from study.gather import work_of
    from trace_file import read_trace, spread_over_ranks

    trace = read_trace(path)
    if not len(trace["step"]):
        return
    report.phases = dict(zip(trace["phases"], zip(*spread_over_ranks(trace, trace["phases"], trace["seconds"]))))
    report.ranks = int(trace["ranks"][-1])
    with tool.using(path, ValueError, kind="a trace with a provenance"):
        report.provenance = tool.require(json.loads(trace["provenance"]), dict, path, "provenance")
    rows = np.flatnonzero(trace["ranks"] == trace["ranks"][-1])
    rows = rows[min(WARM_UP, len(rows) // 2):]
    work, mean, slowest, _ = work_of(trace, rows)
    if report.ranks > 1 and mean > 0:
        report.slowest, report.excess = slowest, float(work.max() / mean - 1)


def read_gpu(entry, path):
    """A GPU of summary.json, in which 0 stands for what is not known."""
    entry = tool.require(entry, dict, path, "gpus")
    numbers = {key: tool.require(entry.get(key, 0), float, path, key) or math.nan for key in GPU}
    reasons = tool.require(entry.get("throttled", {}), dict, path, "throttled")
    return Gpu(numbers, {name: tool.field(reasons, name, int, path) for name in reasons})


def take_summary(report, path):
    """Takes from summary.json what it has: its program is the last one."""
    summary = report.summary
    report.provenance = tool.require(summary.get("provenance", report.provenance), dict, path, "provenance")
    report.ranks = tool.require(summary.get("ranks", report.ranks), int, path, "ranks")
    report.gpus = [read_gpu(gpu, path) for gpu in tool.require(summary.get("gpus", []), list, path, "gpus")]
    steps = report.run.steps - tool.require(summary.get("first_step", 0), int, path, "first_step")
    phases = {name: tool.require(times, dict, path, name)
              for name, times in tool.require(summary.get("phases", {}), dict, path, "phases").items()}
    if phases and steps > 0:
        report.phases = {name: tuple(tool.field(times, key, float, path) / steps
                                     for key in ("avg_seconds", "min_seconds", "max_seconds"))
                         for name, times in phases.items()}


def read_report(run):
    """The report of a run of runs.py. Warns where trace.h5 cannot be read. Throws ToolError for other files."""
    report = Report(run, Watched(run.folder, run.label, once=True))
    report.watched.poll()
    last = max(report.watched.metrics.steps, key=lambda line: line["step"], default={"step": 0})
    if last["step"] > run.steps:  # the run goes on; the summary is that of an earlier start
        run.summary, run.steps, run.seconds = {}, last["step"], last.get("train_seconds", math.nan)
    trace = run.folder / "trace.h5"
    if os.path.lexists(trace):
        try:
            take_trace(report, trace)
        except tool.ToolError as error:
            tool.warn(f"the slowest rank is not known: {error}")
    take_summary(report, run.folder / "summary.json")
    return report


# --- What to look at first --------------------------------------------------------------------------------------------


def slow_steps(report):
    """Share of the steps that take half as long again as the median of their neighbours."""
    times = report.step_times
    if len(times) <= 2 * NEIGHBOURS:
        return math.nan
    slow = sum(time > 1.5 * statistics.median(times[max(0, i - NEIGHBOURS):i + NEIGHBOURS + 1])
               for i, time in enumerate(times))
    return slow / len(times)


def throttled(report):
    """Share of the looks that found a GPU throttled by heat or power supply, of the GPU with most."""
    looks = report.figure("gpu_looks")
    found = [gpu.throttled.get(reason, 0) for gpu in report.gpus for reason in HEAT]
    return max(found) / looks if found and looks > 0 else math.nan


def slow_clock(report):
    """By which share the lowest mean clock of a GPU is below their median."""
    clocks = report.clocks.values()
    return 1 - min(clocks) / statistics.median(clocks) if clocks else math.nan


def risen(report):
    losses = [v.loss for v in report.run.validations if math.isfinite(v.loss)]
    return losses[-1] - min(losses) if losses else math.nan


def lost(report):
    steps = report.watched.metrics.steps
    return sum(not math.isfinite(line["loss"]) for line in steps) if steps else math.nan


@dataclass
class Rule:
    """Something to look at where a quantity is above `most`."""

    what: str
    most: float
    unit: str  # "%" for shares
    find: object  # function of a Report; nan where the quantity is not known
    advice: str  # with {slowest} and {gpu} for ranks

    def text(self, value):
        how, factor = {"%": (".1f", 100), "s": (",.1f", 1), "nats": (".3f", 1)}.get(self.unit, (",.0f", 1))
        return number(value, how, f" {self.unit}" if self.unit else "", factor)

    def breach(self, report):
        """How many times as large as it may be the quantity is; 0 where it is small enough or not known."""
        value = self.find(report)
        return value / self.most if value > self.most and self.most else math.inf if value > self.most else 0


RULES = [
    Rule("steps whose loss is no number", 0, "", lost, "The training has diverged: lower the learning rates."),
    Rule("last validation loss above the lowest", 0.02, "nats", risen,
         "The loss has risen again: compare the learning rates with those of a run that went well."),
    Rule("slowest rank above the mean", 0.05, "%", lambda r: r.excess,
         "The others wait for rank {slowest}: see what else runs on its host, and its GPU."),
    Rule("reading of tokens, of the time", 0.02, "%", lambda r: r.share("data"),
         "Steps wait for tokens: put the shards on a faster file system, or stripe them."),
    Rule("gradients, weights and waiting, of the time", 0.3, "%", lambda r: r.share(*COMMUNICATION),
         "Ranks wait for each other: give each of them more sequences, or take fewer ranks."),
    Rule("validation, of the time", 0.1, "%", lambda r: r.share("validation"),
         "Validate less often (validation.every), or on fewer tokens (validation.tokens)."),
    Rule("checkpoints, of the time", 0.05, "%", lambda r: r.share("checkpoint"),
         "Write fewer (checkpoint.every), or to a faster file system (run.outputs)."),
    Rule("log, metrics and trace, of the time", 0.02, "%", lambda r: r.share("output"),
         "The output directory is slow: choose another file system (run.outputs)."),
    Rule("time in which a rank had no processor", 0.1, "%", lambda r: 1 - r.figure("processor_share"),
         "The processors do other work too: see what else runs on the hosts, and give each rank a core of its own."),
    Rule("start to end of step 1", 60, "s", lambda r: r.figure("time_to_first_step_seconds"),
         "The start is slow: look at the times of the first lines of the log."),
    Rule("steps 1.5 times as long as their neighbours", 0.05, "%", slow_steps,
         "The time of a step varies: see what else uses the hosts, the network and the file system."),
    Rule("looks that found a GPU hot or short of power", 0.05, "%", throttled,
         "A GPU is throttled: have its cooling and its power supply looked at."),
    Rule("lowest clock of a GPU below the median", 0.03, "%", slow_clock,
         "The GPU of rank {gpu} is slower than the others: have it looked at."),
]


def notes(report):
    """What to look at first, in sentences; the greatest breach comes first."""
    found = []
    if not report.run.finished:
        found.append(f"The run is {report.run.state}." if report.summary else "The run has not ended.")
    clocks, breaches = report.clocks, {rule.what: rule.breach(report) for rule in RULES}
    for rule in sorted(RULES, key=lambda rule: -breaches[rule.what]):
        if breaches[rule.what]:
            advice = rule.advice.format(slowest=report.slowest, gpu=min(clocks, key=clocks.get, default=None))
            found.append(f"{rule.what}: {rule.text(rule.find(report))}. {advice}")
    return [tool.one_line(note[0].upper() + note[1:]) for note in found] or ["Nothing stands out."]


# --- As tables --------------------------------------------------------------------------------------------------------


def rules_table(report):
    return [["what is looked at", "here", "at most"],
            *([rule.what, rule.text(rule.find(report)), rule.text(rule.most)] for rule in RULES)]


def counted(value):
    """Text of a fact, for hosts and devices with the number of ranks."""
    return ", ".join(f"{name} ({n})" for name, n in value.items()) if isinstance(value, dict) else str(value)


def origin_table(report):
    facts = {name.replace("_", " "): counted(value) for name, value in report.provenance.items()
             if name not in ("version", "commit", "hosts", "devices", "command")}
    known = report.provenance
    hosts = known.get("hosts")
    program = f"nanorun {known['version']} ({known.get('commit')})" if "version" in known else ""
    rows = {"directory": report.run.folder, "program": program, "command": known.get("command"),
            "hosts (ranks)": counted(hosts or ""), "nodes": len(hosts) if isinstance(hosts, dict) else 0,
            "ranks": report.ranks, "devices (ranks)": counted(known.get("devices", "")), **facts}
    return [["", "of the last start"], *([name, tool.one_line(value)] for name, value in rows.items() if value)]


def figures_table(report):
    """Time, memory and energy."""
    run, times = report.run, report.step_times
    memory = report.figure("peak_device_memory_bytes")
    memory = memory if math.isfinite(memory) else report.figure("peak_memory_bytes")
    rows = [
        ["state", run.state], ["steps", f"{run.steps:,}"], ["validation loss", number(run.loss, ".5f")],
        ["training loss", number(report.watched.last("loss"), ".5f")],
        ["training", number(run.seconds, ",.2f", " s")],
        ["step, median", number(statistics.median(times) if times else math.nan, ",.1f", " ms")],
        ["tokens/s", number(report.tokens_per_second, ",.0f")],
        ["time of 20 million tokens", number(report.figure("seconds_per_20m_tokens"), ",.1f", " s")],
        ["memory of a rank, at most", number(memory, ".2f", " GB", 1e-9)],
        ["slowest rank, above the mean", f"{report.slowest}, {number(report.excess, '+.1f', ' %', 100)}"
         if report.slowest is not None else "—"],
        *([name, number(report.figure(key), *how)] for key, (name, *how) in MERITS.items()),
        ["energy is that of", str(report.summary.get("energy_source") or "—")], *report.further]
    return [["figure", "value"], *(row for row in rows if row[1] != "—")]


def phases_table(report):
    rows = [["phase", "share", "ms per step", "least rank", "most"]]
    for name, times in report.phases.items():
        if times[0] > 0:
            rows.append([name.replace("_", " "), number(report.share(name), ".1f", " %", 100),
                         *(f"{1e3 * seconds:,.2f}" for seconds in times)])
    return rows


def gpus_table(report):
    rows = [["rank", *(name for name, _ in GPU.values()), "looks that found it throttled"]]
    for rank, gpu in enumerate(report.gpus):
        reasons = ", ".join(f"{name} {count}" for name, count in gpu.throttled.items() if count)
        numbers = [number(gpu.numbers[key], ",.0f", unit) for key, (_, unit) in GPU.items()]
        rows.append([rank, *numbers, reasons or "—"])
    return rows


def text(report):
    """The report as lines of a terminal."""
    shown = [figures_table(report), *([phases_table(report)] if report.phases else [])]
    return "\n\n".join([*map(tool.aligned, shown), "\n".join(notes(report))])


# --- As a page --------------------------------------------------------------------------------------------------------


def tiles(report):
    run = report.run
    energy = report.figure("joules_per_token")
    times = report.step_times
    last = ((number(energy, *MERITS["joules_per_token"][1:]), "energy of a token") if math.isfinite(energy) else
            (number(statistics.median(times) if times else math.nan, ",.1f", " ms"), "step, median"))
    loss = ((number(run.loss, ".4f"), "validation loss") if math.isfinite(run.loss) else
            (number(report.watched.last("loss"), ".4f"), "training loss"))
    return page.tiles([loss, (number(run.seconds, ",.1f", " s"), "training"),
                       (number(report.tokens_per_second, ",.0f"), "tokens/s"), last])


def picture(folder):
    """run.png of plot_run.py, if there is one."""
    path = folder / "run.png"
    if not os.path.lexists(path):
        return ""
    tool.require_regular(path)
    with tool.using(path):
        data = base64.b64encode(path.read_bytes()).decode()
    return page.section("Picture of plot_run.py", f'<figure><img alt="run.png" src="data:image/png;base64,{data}">'
                                                  "</figure>")


def document(report):
    found = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes(report))
    body = [tiles(report), page.section("What to look at first", found),
            page.section("Training", charts([report.watched])),
            page.section("Figures", page.table(figures_table(report), text=1))]
    if report.phases:
        body.append(page.section("Where the time goes", page.paragraph("Mean over the ranks, and the ranks with least "
                                                                       "and most."),
                                 page.table(phases_table(report), text=1)))
    if report.gpus:
        body.append(page.section("GPUs", page.table(gpus_table(report), text=0)))
    body += [page.section("What ran where", page.table(origin_table(report), "text")),
             page.section("What was looked at", page.table(rules_table(report), text=1)),
             picture(report.run.folder)]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return page.document(f"Run {report.run.label}", f"{report.run.state}  ·  {today}", *body)
