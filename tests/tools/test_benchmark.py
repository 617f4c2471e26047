"""The benchmark: verdicts of real runs on one and two ranks, and its results side by side."""

import contextlib
import fcntl
import io
import json
import math
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

from support import ROOT, Page, ToolTest, small_run

import benchmark
import deadline
import machines
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

    def read(self, text=FILE):
        self.file.write_text(text)
        return benchmark.read_benchmark(self.file)


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

    def test_judgement(self):
        work = self.read(FILE + REFERENCE.format(3.0))
        none = ("NO REFERENCE", "has no [reference.gpu]")
        for loss, with_reference, without in (
                (3.0000009, ("PASSED", ""), none), (2.9999991, ("PASSED", ""), none),
                (3.000002, ("FAILED", "is off the reference"), none),
                (2.999998, ("FAILED", "is off the reference"), none),
                (1.8, *2 * [("FAILED", "is below the entropy rate")]), (math.nan, *2 * [("FAILED", "finite number")]),
                (math.inf, *2 * [("FAILED", "finite number")])):
            for build, (verdict, why) in (("cpu", with_reference), ("gpu", without)):
                with self.subTest(loss=loss, build=build):
                    found, said = benchmark.judge(work, build, self.runs(3.0, loss))
                    self.assertEqual(found, verdict)
                    self.assertIn(why, said)
        runs = self.runs(3.0, 3.0)
        runs[1].trouble = "exit code 6: a rank died"
        self.assertEqual(benchmark.judge(work, "cpu", runs), ("FAILED", "fixed: exit code 6: a rank died"))

    def runs(self, *losses):
        return [SimpleNamespace(name="fixed", loss=loss, trouble="") for loss in losses]


class Work(BenchmarkTest):
    def test_minutes(self):
        """The fixed run takes 4 s, of which 12 steps take 0.25 s each: into 11 s fit 1 s beside the steps and 40."""
        started = []

        def start(run):
            started.append((run.name, run.ranks, run.steps))

        def gather(run, work):
            run.seconds, run.times = 4.0, [0.25] * (run.steps - work.checked)

        machine = SimpleNamespace(
            program=SimpleNamespace(path=small_run.PROGRAM), make_shard=lambda work: None, start=start,
            run=lambda work, name, ranks, steps: benchmark.Run(self.folder / name, ranks, steps))
        kept = benchmark.gather, benchmark.check_deck, benchmark.time
        self.addCleanup(lambda: vars(benchmark).update(zip(("gather", "check_deck", "time"), kept)))
        benchmark.gather, benchmark.check_deck = gather, lambda program, run: ""
        for minutes, efficiency, left, expected in (
                (0.25, False, 11.0, [("fixed", 2, 12), ("long", 2, 40)]), (None, False, 0, [("fixed", 2, 12)]),
                (0.25, True, 11.0, [("fixed", 2, 12), ("one_rank", 1, 12), ("long", 2, 40)]),
                (0.05, True, 0.0, [("fixed", 2, 12), ("one_rank", 1, 12)])):
            started.clear()
            clock = iter((0.0, 60 * (minutes or 0) - left))
            benchmark.time = SimpleNamespace(monotonic=lambda: next(clock))
            with contextlib.redirect_stdout(io.StringIO()) as said:
                benchmark.run_all(self.read(), machine, 2, SimpleNamespace(minutes=minutes, efficiency=efficiency))
            self.assertEqual(started, expected)
            self.assertEqual("long: skipped" in said.getvalue(), minutes == 0.05)

    def test_figures_are_of_the_longest_run(self):
        work = self.read()
        runs = [benchmark.Run(self.folder / name, ranks, steps, times=times, mfu=mfu,
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
        self.assertIsNone(benchmark.figures(work, runs[:1])["mfu"])

    def test_ranks(self):
        for devices, expected in ((1, 1), (2, 2), (3, 2), (7, 4), (64, 8)):
            machine = SimpleNamespace(devices=devices)
            self.assertEqual(Program.choose_ranks(machine, None, 8), expected)
            self.assertEqual(Program.choose_ranks(machine, 8, 8), 8)

    def test_files_in_the_repository(self):
        """Their decks can be trained, and their entropy rates are those of their tokens."""
        for name in ("full", "small"):
            work = benchmark.read_benchmark(benchmark.FILES / f"{name}.toml")
            out = self.folder / name
            machine = benchmark.Machine(SimpleNamespace(program=small_run.PROGRAM, launcher="mpirun", out=out,
                                                        override=[]))
            benchmark.check_deck(small_run.PROGRAM, machine.run(work, "fixed", 2, work.steps))
            if name == "small":
                machine.make_shard(work)
            else:  # fewer tokens of the same source
                machine.program.call("shard", str(out / "data"), "--synthetic", "4096", "--seed", str(work.seed))
            rate, = re.findall(rb"seed 1, ([0-9.]+) nats per token", (out / "data.h5").read_bytes())
            self.assertEqual(float(rate), work.entropy_rate)
            for reference in work.references.values():
                self.assertGreater(reference.loss, work.entropy_rate)

    def test_wrong_files(self):
        wrong = {"": "benchmark is missing", "[bench]": "[bench] is no section", FILE + "more = 1\n": "more is no key",
                 FILE.replace("seed = 3", "seed = 0"): "seed should be an integer",
                 FILE.replace("steps = 12", "steps = 11"): "more than checked",
                 FILE.replace("window.last=128", "train.steps=9"): "train.steps is set by the benchmark itself",
                 FILE.replace("window.last=128", "128"): "section.key=value",
                 FILE + REFERENCE.replace("cpu", "tpu").format(3): "[reference.tpu]: the builds are cpu, gpu",
                 FILE + REFERENCE.format("nan"): "loss should be", FILE + REFERENCE.format(3) + "x = 1": "x is no key",
                 FILE + REFERENCE.format(3).replace("1e-6", "0"): "tolerance should be",
                 FILE + REFERENCE.format(3).replace("machine", "#"): "machine is missing"}
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
                 (["--minutes", "nan"], "--minutes must be"), (["--size", "none.toml"], "none.toml: No such file"),
                 (["--program", "none"], "none: no such program"), (["--out", "file"], "file: "),
                 (["--ranks", 3], "the 4 sequences of a step cannot be divided among 3 ranks; numbers of ranks that "
                                  "divide them: 1, 2, 4"),
                 (["--", "train.steps=9"], "train.steps is set by the benchmark itself"), (["--", "x"], "section.key="),
                 (["--", "model.wide=1"], "model.wide")]
        for arguments, why in wrong:
            with self.subTest(arguments=arguments):
                output, error, found = self.bench(*arguments, code=2)
                self.assertEqual((output, error.count("\n"), found), ("", 1, None), error)
                self.assertTrue(error.startswith("benchmark.sh: "), error)
                self.assertIn(why, error)


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
                            "MFU": ["45.7 %", "—"], "slowest rank, above the mean": ["3, +2.6 %"] * 2,
                            "memory of a rank": ["2.00 GB", "3.00 GB"], "its reference": ["5.125000 ± 0.5"] * 2,
                            "difference": ["+1.2e-01"] * 2, "hosts (ranks)": ["n1 (4), n2 (4)"] * 2,
                            "processors of a host": ["4 x <CPU>"] * 2, "program": ["1.2.3 (abc)"] * 2}.items():
            self.assertEqual(lines[name], cells)
        self.assertNotIn("compiler", lines)
        page = Page(Path("page.html").read_text())
        self.assertEqual(page.texts["h1"], ["Benchmark of 2 machines"])
        self.assertIn("b: FAILED: so", page.texts["p"])
        self.assertEqual(page.texts["b"][:2], ["1 of 2", "1,500,000"])  # a machine that failed is no winner
        self.assertIn("4 x <CPU>", page.texts["td"])

    def test_different_work_is_told(self):
        code, _, error = self.end("compare.py", self.write("a"), self.write("b", length=128, overrides=["a.b=1"]))
        self.assertEqual((code, error), (0, "warning: the machines have not done the same work: length, overrides "
                                            "differ\n"))

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
