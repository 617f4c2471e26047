"""The benchmark: verdicts of real runs on one and two ranks, and its results side by side."""

import contextlib
import fcntl
import io
import json
import math
import os
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

from support import ROOT, Page, ToolTest, small_run

import benchmark
import benchmark_memory
import busy
import deadline
import machines
import program
import tool
from program import Program

SCRIPT = ROOT / "jobscripts" / "benchmark.sh"
FILE = """
[benchmark]
deck = "deck.toml"
vocabulary = 64
seed = 3
entropy_rate = 1.9
sequences = 4
length = 256
checked = 8
steps = 12
overrides = ["window.first=128", "window.last=128", "optimizer.muon_lr=0.005", "optimizer.lr_embedding=0.06",
             "optimizer.lr_head=0.0008"]
"""
REFERENCE = """
[reference.cpu]
loss = {}
tolerance = 1e-6
machine = "a test"
date = "2026-11-22"
commit = "none"
command = "none"
"""
WEAK = """
[weak]
sequences = 16
[weak.reference.cpu]
ranks = [1, 2, 16]
losses = [3.0, 2.9, 2.8]
gradient_norms = [0.5, 0.4, 0.3]
tolerance = 1e-6
norm_tolerance = 1e-3
machine = "a test"
date = "2026-11-22"
commit = "none"
command = "none"
"""
# Ranks leave the cores to other tests while they wait.
SHARED_CORES = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


class BenchmarkTest(ToolTest):
    def setUp(self):
        super().setUp()
        small_run.write_deck(self.folder)
        self.file = self.folder / "tiny.toml"
        self.file.write_text(FILE)

    def bench(self, *arguments, code=0, out="out", size=None):
        """Exit code is `code`; returns standard output, standard error and the result."""
        path = f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"
        job = deadline.run([SCRIPT, "--program", small_run.PROGRAM, "--size", size or self.file, "--out", out,
                            *map(str, arguments)], text=True, stdin=subprocess.DEVNULL, capture_output=True,
                           env=os.environ | SHARED_CORES | {"PATH": path}, timeout=120)
        self.assertEqual(job.returncode, code, job.stdout + job.stderr)
        result = Path(out) / "benchmark.json"
        return job.stdout, job.stderr, json.loads(result.read_text()) if result.exists() else None

    def read(self, text=FILE, weak=False):
        self.file.write_text(text)
        return benchmark.read_benchmark(self.file, weak)


class Verdicts(BenchmarkTest):
    def test_the_stored_reference_holds(self):
        """That of inputs/benchmark/small.toml, on two ranks."""
        said, _, found = self.bench("--ranks", 2, size="small")
        self.assertTrue(said.endswith("\nPASSED\n"), said)
        self.assertEqual((found["verdict"], found["size"], found["build"], found["ranks"], found["checked_step"]),
                         ("PASSED", "small", "cpu", 2, 16))
        self.assertLessEqual(abs(found["loss"] - found["reference"]["loss"]), found["reference"]["tolerance"])
        self.assertEqual((found["figures"]["timed_steps"], [run["steps"] for run in found["runs"]]), (24, [40]))
        self.assertGreater(found["figures"]["tokens_per_second"], 0)

    def test_the_stored_references_of_growing_work_hold(self):
        """Those of inputs/benchmark/small.toml for one and for two ranks."""
        said, _, found = self.bench("--weak", "--ranks", 2, "--efficiency", size="small")
        self.assertTrue(said.endswith("\nPASSED\n"), said)
        self.assertEqual([(run["name"], run["sequences"]) for run in found["runs"]], [("fixed", 2), ("one_rank", 1)])
        self.assertNotEqual(found["runs"][0]["loss"], found["runs"][1]["loss"])
        self.assertGreater(found["figures"]["efficiency"], 0)

    def test_references_and_faults(self):
        """The loss of one rank is a reference for two; a wrong one and a wrong learning rate are found."""
        self.folder.joinpath("it's [a] \"b\"").mkdir()
        said, _, found = self.bench("--ranks", 1, code=3, out="it's [a] \"b\"")
        self.assertRegex(said, r"\nNO REFERENCE: .*tiny\.toml has no \[reference\.cpu\]\n$")
        loss = found["loss"]
        self.assertEqual((found["verdict"], found["reference"]), ("NO REFERENCE", None))
        self.assertTrue(1.9 < loss < 6, loss)

        self.file.write_text(FILE + REFERENCE.format(loss))
        _, _, found = self.bench("--ranks", 2, "--efficiency")
        self.assertEqual([(run["name"], run["ranks"]) for run in found["runs"]], [("fixed", 2), ("one_rank", 1)])
        self.assertEqual(found["runs"][1]["loss"], loss)
        figures = found["figures"]
        self.assertGreater(figures["efficiency"], 0)
        self.assertIn(figures["slowest_rank"], (0, 1))
        self.assertEqual(found["provenance"]["hosts"].popitem()[1], 2)

        for overrides in (["optimizer.muon_lr=0.00505"], ["optimizer.lr_head=0.000808"]):
            with self.subTest(overrides=overrides):
                said, _, found = self.bench("--ranks", 2, "--", *overrides, code=1, out=overrides[0])
                self.assertRegex(said, r"\nFAILED: fixed: the loss [0-9.]+ is off the reference [0-9.]+ by ")
                self.assertEqual((found["verdict"], found["overrides"]), ("FAILED", overrides))
        self.file.write_text(FILE + REFERENCE.format(loss + 3e-6))
        said, _, found = self.bench("--ranks", 1, code=1, out="falsified")
        self.assertEqual((found["verdict"], found["loss"]), ("FAILED", loss))
        _, said, _ = self.bench("--ranks", 1, code=2, out="falsified")
        self.assertIn("holds a result already", said)

    def test_a_run_that_fails(self):
        said, _, found = self.bench("--ranks", 1, "--", "optimizer.lr_head=1e30", code=1)
        self.assertRegex(said, r"\nFAILED: fixed: exit code 5: nanorun: ")
        self.assertEqual((found["verdict"], found["loss"], found["figures"]), ("FAILED", None, {}))
        self.assertRegex(machines.text(machines.read_results([Path("out/benchmark.json")])), "result +FAILED")


class Work(BenchmarkTest):
    def test_minutes(self):
        """The fixed run takes 4 s, of which 12 steps take 0.25 s each: into 11 s fit 1 s beside the steps and 40."""
        started = []

        def start(run, on_one_node=False):
            self.assertEqual(on_one_node, run.name == "one_rank")
            started.append((run.name, run.ranks, run.steps))

        def gather(run, work):
            run.seconds, run.times = 4.0, [0.25] * (run.steps - work.checked)

        machine = SimpleNamespace(
            program=SimpleNamespace(path=small_run.PROGRAM), make_shard=lambda work: None, start=start,
            run=lambda work, name, ranks, steps, sequences: benchmark.Run(self.folder / name, ranks, steps, sequences),
            overrides=[])
        kept = benchmark.gather, benchmark.require_possible, benchmark.time
        self.addCleanup(lambda: vars(benchmark).update(zip(("gather", "require_possible", "time"), kept)))
        benchmark.gather, benchmark.require_possible = gather, lambda *words: None
        for minutes, efficiency, left, expected in (
                (0.25, False, 11.0, [("fixed", 2, 12), ("long", 2, 40)]), (None, False, 0, [("fixed", 2, 12)]),
                (0.25, True, 11.0, [("fixed", 2, 12), ("one_rank", 1, 12), ("long", 2, 40)]),
                (0.05, True, 0.0, [("fixed", 2, 12), ("one_rank", 1, 12)])):
            started.clear()
            clock = iter((0.0, 60 * (minutes or 0) - left))
            benchmark.time = SimpleNamespace(monotonic=lambda: next(clock))
            with contextlib.redirect_stdout(io.StringIO()) as said:
                benchmark.run_all(self.read(), machine, 2, 4, SimpleNamespace(minutes=minutes, efficiency=efficiency))
            self.assertEqual(started, expected)
            self.assertEqual("long: skipped" in said.getvalue(), minutes == 0.05)

    def test_figures_are_of_the_longest_run(self):
        work = self.read()
        runs = [benchmark.Run(self.folder / name, ranks, steps, 4, times=times, mfu=mfu,
                              summary={"time_to_first_step_seconds": first, "peak_memory_bytes": memory})
                for name, ranks, steps, times, mfu, first, memory in (
                    ("fixed", 2, 12, [0.5] * 4, math.nan, 3.0, 10),
                    ("one_rank", 1, 12, [0.2, 0.6, 0.6, 0.9], 0.1, 2, 9),
                    ("long", 2, 15, [0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5], 0.25, 4.0, 11))]
        benchmark.slowest_rank, kept = lambda run, work: (1, 0.5), benchmark.slowest_rank
        self.addCleanup(setattr, benchmark, "slowest_rank", kept)
        found = benchmark.figures(work, runs)
        self.assertEqual((found["step_ms"], found["timed_steps"], found["mfu"], found["peak_memory_bytes"]),
                         (250, 7, 0.25, 11))
        self.assertEqual((found["tokens_per_second"], found["efficiency"]), (4 * 256 * 7 / 2.5, 0.6 / (2 * 0.25)))
        self.assertEqual(found["time_to_first_step_seconds"], 3.0)
        self.assertAlmostEqual(found["seconds_per_20m_tokens"], 20e6 * 2.5 / (4 * 256 * 7))
        self.assertEqual([found[key] for key in ("joules_per_token", "node_efficiency", "node_ranks")], 3 * [None])
        self.assertIsNone(benchmark.figures(work, runs[:1])["mfu"])
        energy = {"mfu_6nd": 0.2, "joules_per_step": 50.5, "joules_per_token": 0.0125, "tokens_per_wh": 288000.0}
        runs[2].summary |= energy
        self.assertEqual({key: benchmark.figures(work, runs)[key] for key in energy}, energy)

    def test_efficiency_of_growing_work(self):
        """Against runs of this call, or results that are given; the former count."""
        work = self.read(FILE + WEAK, weak=True)
        benchmark.slowest_rank, kept = lambda run, work: (None, None), benchmark.slowest_rank
        self.addCleanup(setattr, benchmark, "slowest_rank", kept)
        runs = [benchmark.Run(self.folder / name, ranks, 12, ranks, times=4 * [seconds])
                for name, ranks, seconds in (("fixed", 32, 0.5), ("one_rank", 1, 0.25), ("one_node", 8, 0.4))]
        found = benchmark.figures(work, runs)
        self.assertEqual((found["efficiency"], found["node_efficiency"], found["node_ranks"]), (0.5, 0.8, 8))
        self.assertEqual(found["tokens_per_second"], 32 * 256 / 0.5)
        given = [machines.Result(Path("x"), {"ranks": ranks, "sequences": ranks, "figures": {"step_ms": ms}})
                 for ranks, ms in ((1, 100.0), (4, 200.0))]
        found = benchmark.figures(work, runs[:1], given)
        self.assertEqual((found["efficiency"], found["node_efficiency"], found["node_ranks"]), (0.2, 0.4, 4))
        found = benchmark.figures(work, runs[:2], given)
        self.assertEqual((found["efficiency"], found["node_efficiency"]), (0.5, 0.4))

    def test_runs_of_one_rank_and_one_node(self):
        def names(ranks, sequences, overrides=(), hosts=None, work=None):
            machine = SimpleNamespace(overrides=list(overrides), run=lambda work, *run: run)
            first = SimpleNamespace(ranks=ranks, sequences=sequences,
                                    summary={"provenance": {"hosts": hosts or {"a": ranks}}})
            with contextlib.redirect_stdout(io.StringIO()) as said:
                return [(name, ranks, sequences) for name, ranks, _, sequences in
                        benchmark.base_runs(work or weak, machine, first)], said.getvalue()

        weak = self.read(FILE + WEAK, weak=True)
        self.assertEqual(names(16, 16), ([("one_rank", 1, 1)], ""))
        self.assertEqual(names(16, 32, hosts={"a": 8, "b": 8}), ([("one_rank", 1, 2), ("one_node", 8, 16)], ""))
        self.assertEqual(names(32, 32, ["comm.ranks_per_node=4"]), ([("one_rank", 1, 1), ("one_node", 4, 4)], ""))
        self.assertEqual(names(48, 48, hosts={"a": 24, "b": 24}),
                         ([("one_rank", 1, 1)], "one_node: skipped, 24 ranks cannot do this work\n"))
        self.assertEqual(names(4, 4, hosts={"a": 2, "b": 2}, work=self.read()),
                         ([("one_rank", 1, 4), ("one_node", 2, 4)], ""))
        self.assertEqual(names(2, 2, hosts={"a": 1, "b": 1}), ([("one_rank", 1, 1)], ""))

    def test_srun_keeps_a_base_run_on_one_node(self):
        commands, kept = [], program.run_to_end
        program.run_to_end = lambda command, log, saves: commands.append(command) or 0
        self.addCleanup(setattr, program, "run_to_end", kept)
        for launcher in program.LAUNCHERS:
            start = SimpleNamespace(path="nanorun", launcher=program.LAUNCHERS[launcher],
                                    on_one_node=program.ON_ONE_NODE[launcher])
            for on_one_node in (False, True):
                Program.start(start, 8, ("train",), Path("log"), on_one_node=on_one_node)
        self.assertEqual([command[:-3] for command in commands], [["mpirun", "-n"], ["mpirun", "-n"], ["srun", "-n"],
                                                                  ["srun", "--nodes=1", "-n"]])

    def test_ranks(self):
        for devices, expected in ((1, 1), (2, 2), (3, 2), (7, 4), (64, 8)):
            machine = SimpleNamespace(devices=devices)
            self.assertEqual(Program.choose_ranks(machine, None, 8), expected)
            self.assertEqual(Program.choose_ranks(machine, 8, 8), 8)

    def test_ranks_of_growing_work(self):
        work = self.read(FILE + WEAK, weak=True)
        for devices, ranks, sequences, expected in (
                (1, None, None, (1, 1)), (3, None, None, (2, 2)), (24, None, None, (16, 16)), (100, None, None, (96, 96)),
                (1, 4096, None, (4096, 4096)), (2, 5, None, (5, 5)), (2, None, 16, (2, 16)), (3, 1, 64, (1, 64))):
            self.assertEqual(benchmark.choose(work, SimpleNamespace(devices=devices),
                                              SimpleNamespace(ranks=ranks, sequences=sequences)), expected)
        for ranks, sequences, why in ((24, None, "24 sequences of a step should be at most 16, or a multiple"),
                                      (2, 3, "3 sequences cannot be divided among 2 ranks")):
            with self.assertRaisesRegex(tool.ToolError, why):
                benchmark.choose(work, SimpleNamespace(devices=1), SimpleNamespace(ranks=ranks, sequences=sequences))

    def test_files_in_the_repository(self):
        """Their decks can be trained, and their entropy rates are those of their tokens."""
        sizes = [file.stem for file in (benchmark.ROOT / "inputs" / "gpt2").glob("*.toml")]
        self.assertEqual(sorted(file.stem for file in benchmark.FILES.glob("*.toml")), sorted(("full", "small", *sizes)))
        for name in ("full", "small", *sizes):
            work = benchmark.read_benchmark(benchmark.file_of(name))
            out = self.folder / name
            machine = benchmark.Machine(SimpleNamespace(program=small_run.PROGRAM, launcher="mpirun", out=out,
                                                        override=[]))
            weak = benchmark.read_benchmark(work.path, weak=True)
            benchmark.require_possible(small_run.PROGRAM, machine.run(work, "fixed", 2, work.steps, work.sequences))
            benchmark.require_possible(small_run.PROGRAM, machine.run(weak, "fixed", 4096, work.steps, 4096))
            # Keys that lower memory may follow those of a size.
            for key in benchmark_memory.RECOMPUTATION:
                self.assertNotIn(key.split("=")[0], benchmark.OWNED)
                machine.overrides = [key]
                benchmark.require_possible(small_run.PROGRAM, machine.run(work, "fixed", 2, work.steps, work.sequences))
            if name == "small":
                machine.make_shard(work)
            else:  # fewer tokens of the same source
                machine.program.call("shard", str(out / "data"), "--synthetic", "4096", "--seed", str(work.seed))
            rate, = re.findall(rb"seed 1, ([0-9.]+) nats per token", (out / "data.h5").read_bytes())
            self.assertEqual(float(rate), work.entropy_rate)
            for reference in (*work.references.values(), *weak.references.values()):
                for expected in reference.expected.values():
                    self.assertGreater(expected.loss, work.entropy_rate)

    def test_a_run_that_the_program_refuses_is_no_failure(self):
        machine = SimpleNamespace(
            program=SimpleNamespace(path=small_run.PROGRAM), make_shard=lambda work: None, overrides=[],
            start=lambda run: vars(run).update(code=benchmark.REFUSED),
            run=lambda work, name, *words: benchmark.Run(self.folder / name, *words))
        (self.folder / "fixed.log").write_text("\n$ mpirun\nnanorun: rank 0 on node a: no GPU\n")
        benchmark.require_possible, kept = lambda *words: None, benchmark.require_possible
        self.addCleanup(setattr, benchmark, "require_possible", kept)
        with self.assertRaisesRegex(tool.ToolError, "^fixed: exit code 2: nanorun: rank 0 on node a: no GPU "):
            benchmark.run_all(self.read(), machine, 2, 4, SimpleNamespace(minutes=None, efficiency=False))

    def test_wrong_files(self):
        wrong = {"": "benchmark is missing", "[bench]": "[bench] is no section", FILE + "more = 1\n": "more is no key",
                 FILE.replace("seed = 3", "seed = 0"): "seed should be an integer",
                 FILE.replace("steps = 12", "steps = 11"): "more than checked",
                 FILE.replace("window.last=128", "train.steps=9"): "train.steps is set by the benchmark itself",
                 FILE.replace("window.last=128", "128"): "section.key=value",
                 FILE + REFERENCE.replace("cpu", "tpu").format(3): "[reference.tpu]: the references are cpu, gpu, gpu_8_9, gpu_bf16",
                 FILE + REFERENCE.format("nan"): "loss should be", FILE + REFERENCE.format(3) + "x = 1": "x is no key",
                 FILE + REFERENCE.format(3).replace("1e-6", "0"): "tolerance should be",
                 FILE + REFERENCE.format(3).replace("machine", "#"): "machine is missing",
                 FILE + WEAK.replace("2.9, ", ""): "should be equally long",
                 FILE + WEAK.replace("[1, 2, 16]", "[1, 2, 17]"): "a number of ranks should be",
                 FILE + WEAK.replace("norm_tolerance", "#"): "norm_tolerance is missing",
                 FILE + WEAK.replace("cpu", "tpu"): "[weak.reference.tpu]: the references are",
                 FILE + WEAK.replace("sequences = 16", "sequences = 1"): "sequences should be",
                 FILE + WEAK.replace("sequences = 16", "sequences = 16\nlength = 3"): "[weak]: length is no key"}
        for text, why in wrong.items():
            with self.subTest(why=why), self.assertRaises(tool.ToolError) as caught:
                self.read(text)
            self.assertIn(why, str(caught.exception))
            self.assertTrue(str(caught.exception).startswith(str(self.file)))

    def test_wrong_arguments(self):
        Path("file").touch()
        Path("busy").mkdir()
        lock = self.enterContext(open("busy/lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        wrong = [(["--out", "busy"], "busy/lock: another command works in this directory"),
                 (["--ranks", 0], "--ranks must be"), (["--minutes", 0], "--minutes must be"),
                 (["--minutes", "nan"], "--minutes must be"), (["--size", "none.toml"], "none.toml is neither a file nor one of 124m"),
                 (["--program", "none"], "none: no such program"), (["--out", "file"], "file: "),
                 (["--ranks", 3], "the 4 sequences of a step cannot be divided among 3 ranks; numbers of ranks that "
                                  "divide them: 1, 2, 4"),
                 (["--", "train.steps=9"], "train.steps is set by the benchmark itself"), (["--", "x"], "section.key="),
                 (["--", "model.wide=1"], "model.wide"), (["--weak"], "has no section [weak]"),
                 (["--sequences", 4], "--sequences must be a positive whole number, with --weak"),
                 (["--against", "none.json"], "none.json: No such file")]
        for arguments, why in wrong:
            with self.subTest(arguments=arguments):
                output, error, found = self.bench(*arguments, code=2)
                self.assertEqual((output, error.count("\n"), found), ("", 1, None), error)
                self.assertTrue(error.startswith("benchmark.sh: "), error)
                self.assertIn(why, error)


class BusyMachine(BenchmarkTest):
    def test_signs(self):
        idle = [([0.97, 0.9], [2.5]), ([None], [2.6, math.nan]), ([], []), ([None, 1.0], [math.nan])]
        for shares, loads in idle:
            self.assertEqual(busy.signs(shares, loads, 2), "")
        self.assertEqual(busy.signs([0.97, 0.524, None], [2.0], 2), "a rank had a processor for 52 % of its steps' time")
        self.assertEqual(busy.signs([None], [1.5, 2.7], 2), "2.7 threads wanted the 2 processors of this host")
        self.assertEqual(busy.signs([0.4], [5.0], 1), "a rank had a processor for 40 % of its steps' time and 5.0 "
                                                      "threads wanted the 1 processor of this host")
        self.assertEqual(busy.signs([], [200.0], 192), "")

    def test_threads_that_run_are_counted(self):
        spinning = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(3)]
        try:
            with busy.Load() as load:
                time.sleep(4 * busy.PERIOD)
        finally:
            for process in spinning:
                process.kill()
                process.wait()
        self.assertGreaterEqual(load.threads, 3)
        with busy.Load() as load:
            pass
        self.assertTrue(math.isnan(load.threads))

    def test_a_busy_machine_does_not_change_the_verdict(self):
        """Other work on the processor that both ranks have."""
        first = min(os.sched_getaffinity(0))
        other = subprocess.Popen(["taskset", "-c", str(first), "sh", "-c", "while :; do :; done"])
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        kept = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {first})
        self.addCleanup(os.sched_setaffinity, 0, kept)
        said, _, found = self.bench("--ranks", 2, size="small")
        self.assertRegex(said, r"\n\nbusy machine, so the figures .*: a rank had a processor for \d+ % .*\n\nPASSED\n$")
        self.assertEqual(found["verdict"], "PASSED")
        self.assertIn("busy machine                  yes\n", said)


class SideBySide(BenchmarkTest):
    def write(self, name, verdict="PASSED", figures=None, **facts):
        path = Path(name) / "benchmark.json"
        path.parent.mkdir()
        path.write_text(json.dumps({
            "format": "nanorun benchmark", "format_version": 1, "verdict": verdict, "why": "so", "size": "full",
            "ranks": 8, "deck": "record21", "sequences": 8, "length": 49152, "overrides": [], "loss": 5.25,
            "reference": {"loss": 5.125, "tolerance": 0.5}, "processors": "4 x <CPU>", "date": "2026-11-22",
            "figures": {"tokens_per_second": 1.5e6, "mfu": 0.4567, "slowest_rank": 3, "slowest_rank_excess": 0.026,
                        "step_ms": 70.25, "peak_memory_bytes": 2e9} | (figures or {}),
            "provenance": {"version": "1.2.3", "commit": "abc", "hosts": {"n1": 4, "n2": 4}}} | facts))
        return path

    def test_terminal_and_page(self):
        first = self.write("a")
        second = self.write("b", "FAILED", {"tokens_per_second": 9e6, "mfu": None, "peak_device_memory_bytes": 3e9})
        code, output, error = self.end("compare.py", first, second, second, "-o", "page.html")
        self.assertEqual((code, error), (0, ""))
        lines = {line.split("  ")[0]: re.split("  +", line)[1:] for line in output.splitlines()}
        for name, cells in {"result": ["PASSED", "FAILED"], "tokens/s": ["1,500,000", "9,000,000"],
                            "MFU, with attention": ["45.7 %", "—"], "slowest rank, above the mean": ["3, +2.6 %"] * 2,
                            "memory of a rank": ["2.00 GB", "3.00 GB"], "its reference": ["5.125000 ± 0.5"] * 2,
                            "difference": ["+1.2e-01"] * 2, "hosts (ranks)": ["n1 (4), n2 (4)"] * 2,
                            "logical processors of a host": ["4 x <CPU>"] * 2, "program": ["1.2.3 (abc)"] * 2}.items():
            self.assertEqual(lines[name], cells)
        self.assertNotIn("compiler", lines)
        page = Page(Path("page.html").read_text())
        self.assertEqual(page.texts["h1"], ["Benchmark of 2 machines"])
        self.assertIn("b: FAILED: so", page.texts["p"])
        self.assertEqual(page.texts["b"][:2], ["1 of 2", "1,500,000"])  # a machine that failed is no winner
        self.assertIn("4 x <CPU>", page.texts["td"])

    def test_growing_work_is_alike_on_any_number_of_ranks(self):
        first = self.write("a", kind="weak", ranks=8, sequences=8)
        second = self.write("b", "PASSED", {"node_efficiency": 0.9, "node_ranks": 8, "joules_per_token": 0.0005,
                                            "joules_per_step": 428.25, "seconds_per_20m_tokens": 12.5},
                            kind="weak", ranks=64, sequences=64)
        code, output, error = self.end("compare.py", first, second)
        self.assertEqual((code, error), (0, ""))
        for line in (r"time of 20 million tokens +— +12\.5 s", r"energy of a step +— +428\.2 J",
                     r"energy of a token +— +0\.5 mJ",
                     r"efficiency against one node +— +90\.0 % \(8 ranks\)", r"work +full, weak, 8 sequences of 49152 +full, "):
            self.assertRegex(output, line)
        _, _, error = self.end("compare.py", first, self.write("c", kind="weak", ranks=8, sequences=16))
        self.assertIn("sequences differ", error)
        _, _, error = self.end("compare.py", first, self.write("d", ranks=1, sequences=1))
        self.assertIn(": kind", error)

    def test_results_to_compare_with(self):
        """--against takes results of the same work, of one node, that have not failed."""
        work = self.read()
        base = {"size": "tiny", "length": 256, "provenance": {"hosts": {"n1": 4}}}
        cases = [({}, ""), ({"provenance": {"hosts": {"n1": 4, "n2": 4}}}, "of 2 nodes"),
                 ({"length": 128}, "another benchmark"), ({"kind": "weak"}, "another benchmark"),
                 ({"size": "full"}, "another benchmark"), ({"verdict": "FAILED"}, "has FAILED")]
        for i, (facts, why) in enumerate(cases):
            arguments = SimpleNamespace(against=[self.write(f"r{i}", **base | facts)])
            if not why:
                self.assertEqual(benchmark.read_bases(work, arguments)[0].figure("step_ms"), 70.25)
                continue
            with self.assertRaisesRegex(tool.ToolError, why):
                benchmark.read_bases(work, arguments)

    def test_different_work_is_told(self):
        code, _, error = self.end("compare.py", self.write("a"), self.write("b", length=128, overrides=["a.b=1"]))
        self.assertEqual((code, error), (0, "warning: the machines have not done the same work: length, overrides "
                                            "differ\n"))

    def test_a_busy_machine_is_told(self):
        path = self.write("a", busy="2.7 threads wanted the 2 processors of this host")
        told = ("a: busy machine, so the figures are lower than on an idle one: 2.7 threads wanted the 2 processors of "
                "this host")
        code, output, error = self.end("compare.py", path, self.write("b"), "-o", "page.html")
        self.assertEqual((code, error), (0, f"warning: {told}\n"))
        self.assertRegex(output, r"\nbusy machine +yes +—\n")
        self.assertIn(told, Page(Path("page.html").read_text()).texts["p"])

    def test_compare_refuses_files_that_are_no_result(self):
        path = self.write("a")
        for text in ("{}", "[]", "{", path.read_text().replace("PASSED", "GOOD"),
                     path.read_text().replace('"nanorun benchmark", "format_version": 1',
                                              '"nanorun benchmark", "format_version": 2'),
                     path.read_text().replace("70.25", '"x"'), path.read_text().replace("5.125", "null")):
            path.write_text(text)
            self.assert_refused("compare.py", path, names=[path])
        self.assert_refused("compare.py", self.write("b"), "a", names=["a: not a file, as"])


if __name__ == "__main__":
    small_run.main()
