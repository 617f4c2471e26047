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

import busy
import program
import tool
from benchmark_file import BF16, FIXED, HOPPER, OTHER_FP8, OWNED, OWNER, read_benchmark
from benchmark_memory import require_possible
from metrics import Metrics
from program import ROOT, Program

SCRIPT = "benchmark.sh"  # the script that starts this tool
FILES = ROOT / "inputs" / "benchmark"
EXIT_CODES = {"PASSED": 0, "FAILED": tool.NOT_DONE, "NO REFERENCE": 3}
REFUSED = 2  # exit code of a run that the program does not begin
FIXED_TOKENS = 20e6  # tokens whose time is a figure of merit, as in other suites of benchmarks


def parse_arguments():
    parser = argparse.ArgumentParser(prog=SCRIPT, description=tool.summary(__doc__), allow_abbrev=False)
    parser.add_argument("--size", default="", metavar="NAME|FILE",
                        help="what is trained: the name of a file of inputs/benchmark, such as 350m, or another file "
                             "(default: full on GPUs, small on CPUs)")
    parser.add_argument("--weak", action="store_true", help="weak scaling: a step has one sequence per rank")
    parser.add_argument("--sequences", type=int, metavar="N",
                        help="with --weak: sequences of a step, a multiple of the ranks")
    parser.add_argument("--minutes", type=float, metavar="M",
                        help="a further run takes what is left of so many minutes, and gives the figures")
    parser.add_argument("--efficiency", action="store_true",
                        help="the same work on one rank too, and on one node if there are several")
    parser.add_argument("--against", type=pathlib.Path, action="append", default=[], metavar="RESULT",
                        help="a benchmark.json of one rank or of one node, from which the efficiency follows; may be "
                             "repeated")
    parser.add_argument("--out", type=tool.directory, default=pathlib.Path("outputs/benchmark"), metavar="DIR",
                        help="directory of the result and of the runs (default: %(default)s)")
    arguments = program.parse(parser, OWNED, OWNER)
    if arguments.minutes is not None and not 0 < arguments.minutes <= 10**5:
        raise tool.ToolError(f"--minutes must be a positive number, not {arguments.minutes:g}")
    if arguments.sequences is not None and not (arguments.weak and 1 <= arguments.sequences <= 10**6):
        raise tool.ToolError("--sequences must be a positive whole number, with --weak")
    return arguments


# --- What is run ------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A training run; `folder` is what the program writes into."""

    folder: pathlib.Path
    ranks: int
    steps: int
    sequences: int = 0  # of a step, on all ranks together
    arguments: tuple = ()  # arguments of the program
    code: int = 0  # exit code
    seconds: float = math.nan  # from start to end
    load: float = math.nan  # threads that wanted a processor of this host meanwhile, as busy.Load has it
    times: list = field(default_factory=list)  # seconds of the timed steps
    summary: dict = field(default_factory=dict)
    loss: float = math.nan  # of the checked step
    gradient_norm: float = math.nan  # of the checked step
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
        tokens = str((benchmark.steps + 1) * benchmark.sequences * benchmark.length)
        self.program.call("shard", str(self.out / "data"), "--force", "--synthetic", tokens, "--tokens-per-shard",
                          tokens, "--seed", str(benchmark.seed), "--vocabulary", str(benchmark.vocabulary),
                          "--end-of-text", str(benchmark.vocabulary - 1))

    def run(self, benchmark, name, ranks, steps, sequences):
        own = [f"run.name={name}", f"run.outputs={tool.toml_string(self.out / 'runs')}",
               f"model.vocabulary={benchmark.vocabulary}", f"train.sequences={sequences}",
               f"train.length={benchmark.length}", f"train.steps={steps}",
               f"data.train=[{tool.toml_string(program.pattern(self.out / 'data.h5'))}]"]
        if benchmark.weak:
            own.append(f"data.distinct_sequences={benchmark.sequences}")
        return Run(self.out / "runs" / name, ranks, steps, sequences,
                   ("train", str(benchmark.deck), *FIXED, *benchmark.overrides, *own, *self.overrides))

    def start(self, run, on_one_node=False):
        """Starts a run and waits for its end."""
        tool.say(f"{run.name}: {run.steps} steps on {run.ranks} rank{'s' if run.ranks > 1 else ''}")
        begin = time.monotonic()
        with busy.Load() as load:
            run.code = self.program.start(run.ranks, run.arguments, run.log, on_one_node=on_one_node)
        run.seconds, run.load = time.monotonic() - begin, load.threads


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
    checked = metrics.steps[benchmark.checked - 1]
    run.loss, run.gradient_norm = checked["loss"], checked.get("gradient_norm", math.nan)
    run.times = [line["ms"] / 1e3 for line in timed]
    run.mfu = sum(line.get("mfu", math.nan) * line["ms"] for line in timed) / sum(line["ms"] for line in timed)


def slowest_rank(run, benchmark):
    """The rank that spends most time outside of collectives, and by which share it exceeds the mean. (None, None)
    without h5py."""
    try:
        tool.need("numpy", "h5py")
        from study.gather import measure

        found = measure(run, run.steps, benchmark.checked, run.steps)
    except tool.ToolError as error:
        tool.warn(f"the slowest rank is not known: {error}")
        return None, None
    return found.slowest, found.excess


def difference(run, expected):
    """What is off in the checked step of a run; empty where nothing is."""
    off = run.loss - expected.loss
    if not abs(off) <= expected.tolerance:
        return (f"the loss {run.loss:.6f} is off the reference {expected.loss:.6f} by {off:+.1e}, the tolerance is "
                f"{expected.tolerance:g}")
    if expected.gradient_norm is None:
        return ""
    off = run.gradient_norm / expected.gradient_norm - 1
    if not abs(off) <= expected.norm_tolerance:
        return (f"the gradient norm {run.gradient_norm:.6g} is off the reference {expected.gradient_norm:.6g} by "
                f"{100 * off:+.1e} %, the tolerance is {100 * expected.norm_tolerance:g} %")
    return ""


def reference_name(build, run):
    """The reference that a run is compared with: that of its build, unless its products in fp8 are not those of
    Hopper."""
    fp8 = run.summary.get("provenance", {}).get("fp8", HOPPER)
    return {HOPPER: build, "bf16": BF16}.get(fp8, OTHER_FP8)


def missing_reference(benchmark, name, run):
    """What the file does not say of a run."""
    known = name in benchmark.references
    return (f"{benchmark.path} has no [{benchmark.section(name)}]"
            + (f" for steps of {run.sequences} sequences" if known else "")
            + {BF16: ": these GPUs compute in bf16 what the deck has in fp8",
               OTHER_FP8: ": these GPUs have other products in fp8 than Hopper"}.get(name, ""))


def judge(benchmark, build, runs):
    """PASSED, FAILED or NO REFERENCE, and why."""
    unknown = ""
    for run in runs:
        if run.trouble:
            return "FAILED", f"{run.name}: {run.trouble}"
        if not math.isfinite(run.loss):
            return "FAILED", f"{run.name}: the loss is not a finite number"
        if run.loss < benchmark.entropy_rate:
            return "FAILED", (f"{run.name}: the loss {run.loss:.6f} is below the entropy rate of the tokens, "
                              f"{benchmark.entropy_rate:g}: the model sees what it is to predict")
        name = reference_name(build, run)
        expected = benchmark.expected(name, run.sequences)
        if expected is None:
            unknown = unknown or missing_reference(benchmark, name, run)
        elif off := difference(run, expected):
            return "FAILED", f"{run.name}: {off}"
    return ("NO REFERENCE", unknown) if unknown else ("PASSED", "")


def rate(sequences, ranks, step):
    """Sequences per second of a rank."""
    return sequences / (ranks * step)


def base_rates(runs, given):
    """Name of a base ("rank", "node") -> its number of ranks and rate, from runs of this call, else from results."""
    found = {}
    for result in given:
        ranks, sequences = (tool.field(result.facts, key, int, result.path, least=1) for key in ("ranks", "sequences"))
        found["rank" if ranks == 1 else "node"] = ranks, rate(sequences, ranks, result.figure("step_ms") / 1e3)
    for run in runs:
        if run.name in ("one_rank", "one_node") and not run.trouble:
            found[run.name.removeprefix("one_")] = run.ranks, rate(run.sequences, run.ranks,
                                                                   statistics.median(run.times))
    return found


def figures(benchmark, runs, given=()):
    """Figures of merit of the longest run on all ranks: name -> number, None where it is not known."""
    run = max((run for run in runs if run.ranks == runs[0].ranks), key=lambda run: run.steps)
    if run.trouble:
        return {}
    median = statistics.median(run.times)
    own = rate(run.sequences, run.ranks, median)
    bases = base_rates(runs, given)
    node_ranks, node_rate = bases.get("node", (None, math.nan))
    rank, excess = slowest_rank(run, benchmark)
    tokens_per_second = run.sequences * benchmark.length * len(run.times) / sum(run.times)
    found = {
        "tokens_per_second": tokens_per_second, "seconds_per_20m_tokens": FIXED_TOKENS / tokens_per_second,
        "mfu": run.mfu if math.isfinite(run.mfu) else None,
        "time_to_first_step_seconds": runs[0].summary.get("time_to_first_step_seconds"),
        "step_ms": 1e3 * median, "timed_steps": len(run.times), "timed_seconds": sum(run.times),
        "efficiency": own / bases["rank"][1] if "rank" in bases else None,
        "node_efficiency": own / node_rate if node_ranks else None, "node_ranks": node_ranks,
        "slowest_rank": rank, "slowest_rank_excess": excess,
    }
    for key in ("peak_memory_bytes", "peak_device_memory_bytes", "mfu_6nd", "joules_per_step", "joules_per_token",
                "tokens_per_wh"):
        found[key] = run.summary.get(key)
    return found


def reference_facts(benchmark, build, run):
    """The reference of a run as the result holds it; None where there is none."""
    name = reference_name(build, run)
    expected = benchmark.expected(name, run.sequences)
    if expected is None:
        return None
    numbers = {key: value for key, value in vars(expected).items() if value is not None}
    return numbers | benchmark.references[name].facts


def finite(number):
    return number if math.isfinite(number) else None


def result(benchmark, machine, runs, given):
    build, first = machine.program.build, runs[0]
    verdict, why = judge(benchmark, build, runs)
    return {
        "format": "nanorun benchmark", "format_version": 1, "verdict": verdict, "why": why, "size": benchmark.size,
        "kind": benchmark.kind, "build": build, "ranks": first.ranks, "deck": benchmark.deck.stem,
        "overrides": machine.overrides, "sequences": first.sequences, "length": benchmark.length,
        "checked_step": benchmark.checked, "loss": finite(first.loss), "gradient_norm": finite(first.gradient_norm),
        "reference": reference_facts(benchmark, build, first),
        "entropy_rate": benchmark.entropy_rate, "figures": figures(benchmark, runs, given),
        "runs": [{"name": run.name, "ranks": run.ranks, "sequences": run.sequences, "steps": run.steps,
                  "exit_code": run.code, "seconds": run.seconds, "loss": finite(run.loss),
                  "gradient_norm": finite(run.gradient_norm)} for run in runs],
        "busy": busy.signs([run.summary.get("processor_share") for run in runs], [run.load for run in runs]),
        "processors": processors(), "energy_source": first.summary.get("energy_source"),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([SCRIPT, *sys.argv[1:]]),
        "provenance": first.summary.get("provenance", {}),
    }


# --- The benchmark ----------------------------------------------------------------------------------------------------


def merits(found):
    """The figures of merit that are known, each on a line that programs can read, as in the log of a run."""
    known = {"ranks": found["ranks"], "loss": found["loss"]} | found["figures"]
    known["busy_machine"] = 1 if found["busy"] else None
    return "\n".join(f"FOM {name} {value:.9g}" for name, value in known.items() if value is not None)


def steps_that_fit(first, seconds):
    """Steps of a run of `seconds`, judged by the time that `first` took in each step and outside of its steps."""
    step = statistics.mean(first.times)
    beside = max(0, first.seconds - first.steps * step)
    return int((seconds - beside) / step)


def node_ranks(run, overrides):
    """Ranks of a node, by comm.ranks_per_node or else by the hosts of a run that has ended."""
    for line in reversed(overrides):
        key, _, value = line.partition("=")
        if key == "comm.ranks_per_node" and value.isdecimal() and int(value) > 0:
            return min(int(value), run.ranks)
    return max(run.summary.get("provenance", {}).get("hosts", {"": run.ranks}).values())


def base_runs(benchmark, machine, first):
    """Runs on one rank and on one node, each with as many sequences per rank as `first` where the work grows."""
    wanted = {"one_rank": 1, "one_node": node_ranks(first, machine.overrides)}
    for name, ranks in wanted.items():
        sequences = first.sequences // first.ranks * ranks if benchmark.weak else benchmark.sequences
        if ranks == first.ranks or (name == "one_node" and ranks == 1):
            continue
        if sequences % ranks or not benchmark.allows(sequences):
            tool.say(f"{name}: skipped, {ranks} ranks cannot do this work")
            continue
        yield machine.run(benchmark, name, ranks, benchmark.steps, sequences)


def run_all(benchmark, machine, ranks, sequences, arguments):
    """Makes the runs and returns them. The one of the fixed work comes first; the others follow only if it has ended in
    order."""
    begin = time.monotonic()
    runs = [machine.run(benchmark, "fixed", ranks, benchmark.steps, sequences)]
    require_possible(machine.program.path, runs[0])
    machine.make_shard(benchmark)

    def start(run, **options):
        machine.start(run, **options)
        gather(run, benchmark)
        return not run.trouble

    good = start(runs[0])
    if runs[0].code == REFUSED:  # for what no dry run finds: the launcher, GPUs of other nodes, code for a newer driver
        raise tool.ToolError(f"{runs[0].name}: {runs[0].trouble}")
    if good and arguments.efficiency:
        for run in base_runs(benchmark, machine, runs[0]):
            runs.append(run)
            start(run, on_one_node=True)
    if arguments.minutes and not any(run.trouble for run in runs):
        steps = steps_that_fit(runs[0], 60 * arguments.minutes - (time.monotonic() - begin))
        if steps > benchmark.steps:
            runs.append(machine.run(benchmark, "long", ranks, steps, sequences))
            start(runs[-1])
        else:
            tool.say(f"long: skipped, {max(0, steps)} steps are left of {arguments.minutes:g} minutes")
    return runs


def choose(benchmark, start, arguments):
    """Numbers of ranks and of sequences of a step. Throws ToolError."""
    if not benchmark.weak:
        return start.choose_ranks(arguments.ranks, benchmark.sequences), benchmark.sequences
    most = max(1, start.devices)
    usual = [n for n in range(1, most + 1) if n % benchmark.sequences == 0 or benchmark.sequences % n == 0]
    ranks = arguments.ranks or max(n for n in usual if (arguments.sequences or n) % n == 0)
    sequences = arguments.sequences or ranks
    if sequences % ranks:
        raise tool.ToolError(f"--sequences: {sequences} sequences cannot be divided among {ranks} ranks")
    if not benchmark.allows(sequences):
        raise tool.ToolError(f"--weak: {sequences} sequences of a step should be at most {benchmark.sequences}, or a "
                             "multiple of that")
    return ranks, sequences


def read_bases(benchmark, arguments):
    """The results of --against. Throws ToolError where one is not of this work on one rank or one node."""
    import machines

    bases = [machines.read_result(path) for path in arguments.against]
    for base in bases:
        facts = base.facts
        hosts = tool.field(tool.field(facts, "provenance", dict, base.path), "hosts", dict, base.path)
        if len(hosts) > 1:
            raise tool.ToolError(f"--against: {base.path} is of {len(hosts)} nodes; it should be of one")
        if (facts.get("size"), base.work("kind"), facts.get("length")) != (benchmark.size, benchmark.kind,
                                                                           benchmark.length):
            raise tool.ToolError(f"--against: {base.path} is of another benchmark")
        if base.verdict == "FAILED":
            raise tool.ToolError(f"--against: {base.path} has FAILED")
    return bases


def file_of(size):
    """The file of inputs/benchmark of that name, or `size` itself where there is none."""
    named, path = FILES / f"{size}.toml", pathlib.Path(size)
    if named.is_file() or not path.exists():
        path = named
    if not path.exists():
        names = sorted(file.stem for file in FILES.glob("*.toml"))
        raise tool.ToolError(f"--size {size} is neither a file nor one of {', '.join(names)}")
    return path


def main():
    arguments = parse_arguments()
    # What can be said of the file is said before the program is looked for.
    benchmark = read_benchmark(file_of(arguments.size), arguments.weak) if arguments.size else None
    machine = Machine(arguments)
    if not benchmark:
        benchmark = read_benchmark(file_of("small" if machine.program.build == "cpu" else "full"), arguments.weak)
    given = read_bases(benchmark, arguments)
    ranks, sequences = choose(benchmark, machine.program, arguments)
    found = result(benchmark, machine, run_all(benchmark, machine, ranks, sequences, arguments), given)
    path = machine.out / "benchmark.json"
    tool.replace(path, json.dumps(found, indent=2) + "\n")
    import machines

    verdict = found["verdict"] + (f": {found['why']}" if found["why"] else "")
    parts = [machines.text([machines.Result(path, found)]), merits(found), str(path), verdict]
    if found["busy"]:
        parts.insert(-1, busy.sentence(found["busy"]))
    tool.say("\n" + "\n\n".join(parts))
    return EXIT_CODES[found["verdict"]]


if __name__ == "__main__":
    tool.run(main, SCRIPT)
