#!/usr/bin/env python3
"""Measures a machine by a fixed amount of training on synthetic tokens, and checks the loss against a reference.

Starts the runs of a file of inputs/benchmark, prints the figures of merit and PASSED, FAILED or NO REFERENCE, and
writes them to OUT/benchmark.json, of which compare.py lays several side by side. jobscripts/benchmark.sh starts it.
Exit codes: 0 PASSED, 1 FAILED, 2 the benchmark cannot be run, 3 NO REFERENCE. The slowest rank needs numpy and h5py.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import sys
import time
from dataclasses import dataclass, field

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import program
import tool
from metrics import Metrics
from program import BUILDS, ROOT, Program
from study.program import check_deck

SCRIPT = "benchmark.sh"  # the script that starts this tool
FILES = ROOT / "inputs" / "benchmark"
EXIT_CODES = {"PASSED": 0, "FAILED": tool.NOT_DONE, "NO REFERENCE": 3}
PROVENANCE = ("machine", "date", "commit", "command")  # fields of a reference
# Overrides of every run: the same work on any number of ranks, and nothing beside it.
FIXED = ("run.log_every=1", "train.cooldown=0", "data.validation=[]", "data.end=wrap", "validation.every=0",
         "validation.tokens=0", "checkpoint.every=0", "checkpoint.milestone_every=0", "checkpoint.at_end=false",
         "checkpoint.restart=none", "trace.enabled=true")
OWNED = ("run.name", "run.outputs", "model.vocabulary", "train.steps", "train.sequences", "train.length", "data.train",
         "checkpoint.weights", "stop.step", *(line.split("=")[0] for line in FIXED))


def parse_arguments():
    parser = argparse.ArgumentParser(prog=SCRIPT, description=tool.summary(__doc__), allow_abbrev=False)
    parser.add_argument("--size", default="", metavar="full|small|FILE",
                        help="what is trained: a file of inputs/benchmark, or another one (default: full on GPUs, "
                             "small on CPUs)")
    parser.add_argument("--minutes", type=float, metavar="M",
                        help="a further run takes what is left of so many minutes, and gives the figures")
    parser.add_argument("--efficiency", action="store_true", help="the same work on one rank too")
    parser.add_argument("--out", type=tool.directory, default=pathlib.Path("outputs/benchmark"), metavar="DIR",
                        help="directory of the result and of the runs (default: %(default)s)")
    arguments = program.parse(parser, OWNED, "the benchmark")
    if arguments.minutes is not None and not 0 < arguments.minutes <= 10**5:
        raise tool.ToolError(f"--minutes must be a positive number, not {arguments.minutes:g}")
    return arguments


# --- What is run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    loss: float
    tolerance: float
    facts: dict  # PROVENANCE


@dataclass(frozen=True)
class Benchmark:
    """A file of inputs/benchmark."""

    path: pathlib.Path
    deck: pathlib.Path
    vocabulary: int
    seed: int
    entropy_rate: float  # nats per token
    sequences: int  # sequences of a step, on all ranks together
    length: int
    checked: int  # step whose loss is compared; those after it are timed
    steps: int
    overrides: tuple
    references: dict  # build -> Reference

    @property
    def size(self):
        return self.path.stem

    @property
    def step_tokens(self):
        return self.sequences * self.length


def read_reference(table, path, where):
    facts = {key: tool.field(table, key, str, path) for key in PROVENANCE}
    for key in table.keys() - {"loss", "tolerance", *PROVENANCE}:
        raise tool.ToolError(f"{path}: [{where}]: {key} is no key of a reference")
    return Reference(tool.field(table, "loss", float, path, least=0),
                     tool.field(table, "tolerance", float, path, least=1e-12, most=1), facts)


def read_benchmark(path):
    """Reads a file of inputs/benchmark. Throws ToolError."""
    tables = tool.read_toml(path)
    for name in tables.keys() - {"benchmark", "reference"}:
        raise tool.ToolError(f"{path}: [{name}] is no section of a benchmark; sections: benchmark, reference")
    table = tool.field(tables, "benchmark", dict, path)
    numbers = {key: tool.field(table, key, int, path, least=1, most=2**31 - 1)
               for key in ("vocabulary", "seed", "sequences", "length", "checked", "steps")}
    for key in table.keys() - numbers.keys() - {"deck", "entropy_rate", "overrides"}:
        raise tool.ToolError(f"{path}: {key} is no key of a benchmark")
    if numbers["checked"] + 4 > numbers["steps"]:
        raise tool.ToolError(f"{path}: steps should be more than checked by 4 at least")
    overrides = tool.field(table, "overrides", list, path)
    program.require_overrides(overrides, f"{path}: overrides", OWNED, "the benchmark")
    references = tool.field(tables, "reference", dict, path) if "reference" in tables else {}
    for build in references:
        if build not in BUILDS:
            raise tool.ToolError(f"{path}: [reference.{build}]: the builds are {', '.join(BUILDS)}")
    return Benchmark(path, path.parent / tool.field(table, "deck", str, path), **numbers,
                     entropy_rate=tool.field(table, "entropy_rate", float, path, least=0), overrides=tuple(overrides),
                     references={build: read_reference(tool.field(references, build, dict, path), path,
                                                       f"reference.{build}") for build in references})


@dataclass
class Run:
    """A training run; `folder` is what the program writes into."""

    folder: pathlib.Path
    ranks: int
    steps: int
    arguments: tuple = ()  # arguments of the program
    code: int = 0  # exit code
    seconds: float = math.nan  # from start to end
    times: list = field(default_factory=list)  # seconds of the timed steps
    summary: dict = field(default_factory=dict)
    loss: float = math.nan  # loss of the checked step
    mfu: float = math.nan
    trouble: str = ""  # what is wrong with it

    @property
    def log(self):
        return self.folder.with_suffix(".log")

    @property
    def name(self):
        return self.folder.name


class Machine:
    """Where and how runs are started."""

    def __init__(self, arguments):
        self.program = Program(arguments.program, arguments.launcher)
        self.out = program.make_directory(arguments.out)
        self.lock = program.take_lock(self.out)
        require_no_result(self.out)
        self.overrides = arguments.override

    def make_shard(self, benchmark):
        """Makes the token shard that holds the tokens of all steps of the first run. Longer runs read it again."""
        tokens = str((benchmark.steps + 1) * benchmark.step_tokens)
        self.program.call("shard", str(self.out / "data"), "--force", "--synthetic", tokens, "--tokens-per-shard",
                          tokens, "--seed", str(benchmark.seed), "--vocabulary", str(benchmark.vocabulary),
                          "--end-of-text", str(benchmark.vocabulary - 1))

    def run(self, benchmark, name, ranks, steps):
        own = (f"run.name={name}", f"run.outputs={tool.toml_string(self.out / 'runs')}",
               f"model.vocabulary={benchmark.vocabulary}", f"train.sequences={benchmark.sequences}",
               f"train.length={benchmark.length}", f"train.steps={steps}",
               f"data.train=[{tool.toml_string(program.pattern(self.out / 'data.h5'))}]")
        return Run(self.out / "runs" / name, ranks, steps,
                   ("train", str(benchmark.deck), *FIXED, *benchmark.overrides, *own, *self.overrides))

    def start(self, run):
        """Starts a run and waits for its end."""
        tool.say(f"{run.name}: {run.steps} steps on {run.ranks} rank{'s' if run.ranks > 1 else ''}")
        begin = time.monotonic()
        run.code = self.program.start(run.ranks, run.arguments, run.log)
        run.seconds = time.monotonic() - begin


def require_no_result(out):
    if (out / "benchmark.json").exists():
        raise tool.ToolError(f"{out} holds a result already; name another directory with --out")


def processors():
    """Number and models of this host's processors, as far as the system names them."""
    try:
        models = re.findall(r"^model name\s*: (.*)$", tool.read_text("/proc/cpuinfo"), re.MULTILINE)
    except tool.ToolError:
        models = []
    return f"{os.cpu_count()} x {', '.join(dict.fromkeys(models)) or os.uname().machine}"


# --- What is found ----------------------------------------------------------------------------------------------------


def gather(run, benchmark):
    """Fills `run` with the figures that it has left in its files, or its `trouble` with what is wrong with them."""
    if run.code != 0:
        run.trouble = program.failure(run.code, run.log)
        return
    try:
        run.summary = tool.read_json(run.folder / "summary.json")
        metrics = Metrics(run.folder / "metrics.jsonl")
        metrics.poll()
        if [line["step"] for line in metrics.steps] != list(range(1, run.steps + 1)):
            raise tool.ToolError(f"{metrics.path}: holds {len(metrics.steps)} steps of {run.steps}")
    except tool.ToolError as error:
        run.trouble = str(error)
        return
    timed = metrics.steps[benchmark.checked:]
    run.loss = metrics.steps[benchmark.checked - 1]["loss"]
    run.times = [line["ms"] / 1e3 for line in timed]
    run.mfu = sum(line.get("mfu", math.nan) * line["ms"] for line in timed) / sum(line["ms"] for line in timed)


def slowest_rank(run, benchmark):
    """The rank that spends most time outside of collectives, and by which share it exceeds the mean. (None, None)
    without h5py."""
    try:
        tool.need("numpy", "h5py")
        from study.gather import measure

        found = measure(run, benchmark.checked, run.steps)
    except tool.ToolError as error:
        tool.warn(f"the slowest rank is not known: {error}")
        return None, None
    return found.slowest, found.excess


def judge(benchmark, build, runs):
    """PASSED, FAILED or NO REFERENCE, and why."""
    reference = benchmark.references.get(build)
    for run in runs:
        if run.trouble:
            return "FAILED", f"{run.name}: {run.trouble}"
        if not math.isfinite(run.loss):
            return "FAILED", f"{run.name}: the loss is not a finite number"
        if run.loss < benchmark.entropy_rate:
            return "FAILED", (f"{run.name}: the loss {run.loss:.6f} is below the entropy rate of the tokens, "
                              f"{benchmark.entropy_rate:g}: the model sees what it is to predict")
        if reference and not abs(run.loss - reference.loss) <= reference.tolerance:
            return "FAILED", (f"{run.name}: the loss {run.loss:.6f} is off the reference {reference.loss:.6f} by "
                              f"{run.loss - reference.loss:+.1e}, the tolerance is {reference.tolerance:g}")
    if reference is None:
        return "NO REFERENCE", f"{benchmark.path} has no [reference.{build}]"
    return "PASSED", ""


def figures(benchmark, runs):
    """Figures of merit of the longest run on all ranks: name -> number, None where it is not known."""
    run = max((run for run in runs if run.ranks == runs[0].ranks), key=lambda run: run.steps)
    if run.trouble:
        return {}
    median = statistics.median(run.times)
    alone = next((other for other in runs if other.name == "one_rank" and not other.trouble), None)
    rank, excess = slowest_rank(run, benchmark)
    found = {
        "tokens_per_second": benchmark.step_tokens * len(run.times) / sum(run.times),
        "mfu": run.mfu if math.isfinite(run.mfu) else None,
        "time_to_first_step_seconds": runs[0].summary.get("time_to_first_step_seconds"),
        "step_ms": 1e3 * median, "timed_steps": len(run.times), "timed_seconds": sum(run.times),
        "efficiency": statistics.median(alone.times) / (run.ranks * median) if alone else None,
        "slowest_rank": rank, "slowest_rank_excess": excess,
    }
    for key in ("peak_memory_bytes", "peak_device_memory_bytes"):
        found[key] = run.summary.get(key)
    return found


def result(benchmark, machine, ranks, runs):
    verdict, why = judge(benchmark, machine.program.build, runs)
    reference = benchmark.references.get(machine.program.build)
    return {
        "format": "nanorun benchmark", "format_version": 1, "verdict": verdict, "why": why, "size": benchmark.size,
        "build": machine.program.build, "ranks": ranks, "deck": benchmark.deck.stem, "overrides": machine.overrides,
        "sequences": benchmark.sequences, "length": benchmark.length, "checked_step": benchmark.checked,
        "loss": runs[0].loss if math.isfinite(runs[0].loss) else None,
        "reference": reference and {"loss": reference.loss, "tolerance": reference.tolerance, **reference.facts},
        "entropy_rate": benchmark.entropy_rate, "figures": figures(benchmark, runs),
        "runs": [{"name": run.name, "ranks": run.ranks, "steps": run.steps, "exit_code": run.code,
                  "seconds": run.seconds, "loss": run.loss if math.isfinite(run.loss) else None} for run in runs],
        "processors": processors(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([SCRIPT, *sys.argv[1:]]),
        "provenance": runs[0].summary.get("provenance", {}),
    }


# --- The benchmark ----------------------------------------------------------------------------------------------------


def steps_that_fit(first, seconds):
    """Steps of a run of `seconds`, judged by the time that `first` took in each step and outside of its steps."""
    step = statistics.mean(first.times)
    beside = max(0, first.seconds - first.steps * step)
    return int((seconds - beside) / step)


def run_all(benchmark, machine, ranks, arguments):
    """Makes the runs and returns them. The one of the fixed work comes first; the others follow only if it has ended in
    order."""
    begin = time.monotonic()
    runs = [machine.run(benchmark, "fixed", ranks, benchmark.steps)]
    check_deck(machine.program.path, runs[0], "--ranks", str(ranks))
    machine.make_shard(benchmark)

    def start(run):
        machine.start(run)
        gather(run, benchmark)
        return not run.trouble

    if start(runs[0]) and arguments.efficiency and ranks > 1:
        runs.append(machine.run(benchmark, "one_rank", 1, benchmark.steps))
        start(runs[-1])
    if arguments.minutes and not any(run.trouble for run in runs):
        steps = steps_that_fit(runs[0], 60 * arguments.minutes - (time.monotonic() - begin))
        if steps > benchmark.steps:
            runs.append(machine.run(benchmark, "long", ranks, steps))
            start(runs[-1])
        else:
            tool.say(f"long: skipped, {max(0, steps)} steps are left of {arguments.minutes:g} minutes")
    return runs


def main():
    arguments = parse_arguments()
    if arguments.size not in ("", "full", "small"):
        benchmark = read_benchmark(pathlib.Path(arguments.size))
        machine = Machine(arguments)
    else:
        machine = Machine(arguments)
        size = arguments.size or ("small" if machine.program.build == "cpu" else "full")
        benchmark = read_benchmark(FILES / f"{size}.toml")
    ranks = machine.program.choose_ranks(arguments.ranks, benchmark.sequences)
    found = result(benchmark, machine, ranks, run_all(benchmark, machine, ranks, arguments))
    path = machine.out / "benchmark.json"
    tool.replace(path, json.dumps(found, indent=2) + "\n")
    import machines

    tool.say(f"\n{machines.text([machines.Result(path, found)])}\n\n{path}\n\n{found['verdict']}"
             + (f": {found['why']}" if found["why"] else ""))
    return EXIT_CODES[found["verdict"]]


if __name__ == "__main__":
    tool.run(main, SCRIPT)
