"""Results of jobscripts/benchmark.sh side by side: a column for each machine."""

import datetime
import html
import math
from dataclasses import dataclass

import busy
import page
import tool
from runs import distinct, name_runs

VERDICTS = ("PASSED", "FAILED", "NO REFERENCE")
WORK = ("size", "deck", "kind", "sequences", "length", "overrides")  # in which comparable results agree


@dataclass
class Result:
    path: object
    facts: dict  # contents of the file
    label: str = ""

    def figure(self, name):
        """A figure of merit; not a number where it is not known."""
        value = tool.field(self.facts, "figures", dict, self.path).get(name)
        return math.nan if value is None else tool.require(value, float, self.path, name)

    def origin(self, name):
        """A fact of the provenance as text, for hosts and devices with the number of ranks."""
        value = tool.field(self.facts, "provenance", dict, self.path).get(name, "—")
        return ", ".join(f"{what} ({n})" for what, n in value.items()) if isinstance(value, dict) else str(value)

    def work(self, name):
        """What the result says of its work. Where this grows with the ranks, the sequences are those of a rank."""
        if name == "kind":
            return self.facts.get(name, "strong")  # earlier results do not say it
        value = self.facts.get(name)
        if name == "sequences" and self.work("kind") == "weak":
            return tool.require(value, int, self.path, name) / tool.field(self.facts, "ranks", int, self.path, least=1)
        return value

    @property
    def verdict(self):
        verdict = tool.field(self.facts, "verdict", str, self.path)
        if verdict not in VERDICTS:
            raise tool.ToolError(f"{self.path}: verdict should be one of {', '.join(VERDICTS)}")
        return verdict


def read_result(path):
    """Reads a benchmark.json. Throws ToolError."""
    facts = tool.read_json(path)
    if facts.get("format") != "nanorun benchmark" or facts.get("format_version") != 1:
        raise tool.ToolError(f"{path}: not a result of benchmark.sh of format version 1")
    return Result(path, facts)


def read_results(paths):
    """The results, labelled with the names of their directories. Throws ToolError."""
    paths = distinct(paths)
    results = [read_result(path) for path in paths]
    for result, label in zip(results, name_runs([path.parent for path in paths])):
        result.label = label
    return results


def doubts(results):
    """Why the figures may not stand side by side, a line each."""
    apart = [key for key in WORK if len({str(result.work(key)) for result in results}) > 1]
    lines = [f"the machines have not done the same work: {', '.join(apart)} differ"] if apart else []
    return lines + [f"{result.label}: {busy.sentence(result.facts['busy'])}" for result in results
                    if result.facts.get("busy")]


def number(value, how, unit="", factor=1):
    """A number with its unit; a dash for None."""
    return format(factor * value, how) + unit if math.isfinite(value) else "—"


def slowest(result):
    rank = result.figure("slowest_rank")
    return f"{rank:.0f}, {number(result.figure('slowest_rank_excess'), '+.1f', ' %', 100)}" if rank >= 0 else "—"


def memory(result):
    """Memory of a rank: of its GPU, if it has one."""
    device = result.figure("peak_device_memory_bytes")
    return number(device if math.isfinite(device) else result.figure("peak_memory_bytes"), ".2f", " GB", 1e-9)


def loss(result):
    value = result.facts.get("loss")
    value = math.nan if value is None else tool.require(value, float, result.path, "loss")
    reference = result.facts.get("reference")
    if reference is None:
        return [number(value, ".6f"), "—", "—"]
    tool.require(reference, dict, result.path, "reference")
    expected, tolerance = (tool.field(reference, key, float, result.path) for key in ("loss", "tolerance"))
    return [number(value, ".6f"), f"{expected:.6f} ± {tolerance:g}", number(value - expected, "+.1e")]


def node_efficiency(result):
    ranks = result.figure("node_ranks")
    return f"{number(result.figure('node_efficiency'), '.1f', ' %', 100)} ({ranks:.0f} ranks)" if ranks > 0 else "—"


def work(result):
    weak = ["weak"] if result.work("kind") == "weak" else []
    return (", ".join([str(result.facts.get("size")), *weak,
                       f"{result.facts.get('sequences')} sequences of {result.facts.get('length')}"])
            + "".join(f", {line}" for line in result.facts.get("overrides") or []))


# Name of the row -> text of a result.
FIGURES = {
    "result": lambda r: r.verdict,
    "ranks": lambda r: str(r.facts.get("ranks")),
    "tokens/s": lambda r: number(r.figure("tokens_per_second"), ",.0f"),
    "time of 20 million tokens": lambda r: number(r.figure("seconds_per_20m_tokens"), ",.1f", " s"),
    "energy of a step": lambda r: number(r.figure("joules_per_step"), ",.4g", " J"),
    "energy of a token": lambda r: number(r.figure("joules_per_token"), ".3g", " mJ", 1e3),
    "tokens per Wh": lambda r: number(r.figure("tokens_per_wh"), ",.0f"),
    "energy is that of": lambda r: str(r.facts.get("energy_source") or "—"),
    "MFU, with attention": lambda r: number(r.figure("mfu"), ".1f", " %", 100),
    "MFU, 6 N D": lambda r: number(r.figure("mfu_6nd"), ".1f", " %", 100),
    "step, median": lambda r: number(r.figure("step_ms"), ",.1f", " ms"),
    "start to end of step 1": lambda r: number(r.figure("time_to_first_step_seconds"), ".1f", " s"),
    "efficiency against one rank": lambda r: number(r.figure("efficiency"), ".1f", " %", 100),
    "efficiency against one node": node_efficiency,
    "slowest rank, above the mean": slowest,
    "memory of a rank": memory,
    "busy machine": lambda r: "yes" if r.facts.get("busy") else "—",
    "timed": lambda r: f"{number(r.figure('timed_steps'), '.0f')} steps, {number(r.figure('timed_seconds'), '.1f')} s",
    "loss of the checked step": lambda r: loss(r)[0],
    "its reference": lambda r: loss(r)[1],
    "difference": lambda r: loss(r)[2],
}
ORIGINS = {
    "work": work,
    "hosts (ranks)": lambda r: r.origin("hosts"),
    "logical processors of a host": lambda r: str(r.facts.get("processors")),
    "devices (ranks)": lambda r: r.origin("devices"),
    "program": lambda r: f"{r.origin('version')} ({r.origin('commit')})",
    "compiler": lambda r: r.origin("compiler"),
    "MPI": lambda r: r.origin("mpi"),
    "BLAS": lambda r: r.origin("blas"),
    "CUDA": lambda r: r.origin("cuda_runtime"),
    "date": lambda r: str(r.facts.get("date")),
}


def rows(results, texts):
    """A row for each text, without those that no result has."""
    found = [[name, *(text(result) for result in results)] for name, text in texts.items()]
    return [row for row in found if any(cell != "—" for cell in row[1:])]


def text(results):
    """The table as lines of a terminal."""
    heading = [["", *(result.label for result in results)]] if len(results) > 1 else []
    both = [rows(results, FIGURES), rows(results, ORIGINS)]
    return "\n\n".join(tool.aligned(heading + found, text=1 + len(results)) for found in both)


def tiles(results):
    passed = [result for result in results if result.verdict == "PASSED"]
    content = [(f"{len(passed)} of {len(results)}", "machines passed")]
    for name, what, show in (("tokens_per_second", "most tokens/s", lambda v: f"{v:,.0f}"),
                             ("mfu", "highest MFU", lambda v: f"{100 * v:.1f} %"),
                             ("time_to_first_step_seconds", "soonest end of step 1", lambda v: f"{v:.1f} s")):
        best = (min if what.startswith("soonest") else max)(
            (result for result in passed if math.isfinite(result.figure(name))), key=lambda r: r.figure(name),
            default=None)
        content.append((show(best.figure(name)), f"{what}, {best.label}") if best else ("—", what))
    return page.tiles(content)


def document(results):
    heading = ["", *(result.label for result in results)]
    failed = [f"{result.label}: {result.verdict}: {result.facts.get('why')}" for result in results
              if result.verdict != "PASSED"]
    files = ", ".join(f"<code>{html.escape(str(result.path))}</code>" for result in results)
    body = [tiles(results), *(f'<p class="note">{html.escape(line)}</p>' for line in failed + doubts(results)),
            page.section("Figures of merit", page.table([heading, *rows(results, FIGURES)], text=1)),
            page.section("Machines", page.table([heading, *rows(results, ORIGINS)], "text")),
            page.section("Files", f"<p>{files}</p>")]
    count, today = len(results), datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return page.document(f"Benchmark of {count} machine{'s' if count > 1 else ''}", today, *body)


def write(paths, output):
    """Reads the results, warns of doubts, and writes their page; returns the results. Throws ToolError."""
    results = read_results(paths)
    for line in doubts(results):
        tool.warn(f"warning: {line}")
    tool.replace(output, document(results))
    return results
