"""A node is measured: a small deck on one and two ranks of this machine in place of GPUs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from measured_node import PASSING, MeasuredNode, steps_of
from support import ROOT, small_run

from node.runs import last_words

FAILING = "#!/usr/bin/env bash\necho 'nanorun: ranks | differ' >&2\nexit 9\n"


class MeasureNode(MeasuredNode):
    def test_a_node(self):
        self.stub("test_rank_count", FAILING)
        self.stub("test_tensor_comm", PASSING)
        table, _ = self.measure("--gpus", 3, "--steps", 6, "--only", "windows,losses,nccl,strong,faults", code=1)
        self.assertEqual(table.rstrip("\n"), Path("out/table.md").read_text().rstrip("\n"))
        rows = self.rows(table)
        trained = [("windows", "weak", n) for n in "12"]
        trained += [("losses", "strong", n) for n in "12"] + [("nccl", "nccl", "2")]
        trained += [("strong", f"ranks{n}_repeat1", n) for n in "12"]
        for key in trained:
            with self.subTest(key=key):
                row = rows["deck", *key]
                self.assertEqual((row["result"], row["steps"]),
                                 ("ok, but not through NCCL", "15") if key[0] == "nccl" else ("ok", "6"))
                self.assertEqual(row["ms/step"] != "", key[0] != "windows")
                self.assertGreater(float(row["training loss"]), 0)
                self.assertEqual(row["validation loss"] != "", key[0] == "losses")
        self.assertTrue(rows["", "faults", "test_rank_count", "2"]["result"].startswith(
            "FAILED (9): nanorun: ranks / differ"), table)
        self.assertEqual(rows["", "faults", "test_tensor_comm", "2"]["result"], "3 passed")
        self.assertEqual(rows["deck", "strong", "report", ""]["result"], "ok")
        self.assertTrue(Path("out/report/deck/strong/report.html").is_file())
        self.assertRegex(Path("out/report/deck/strong/ranks2_repeat1/log.txt").read_text(), "window  896")
        self.assertRegex(table, r"deck strong, efficiency: 100.0 % on 1, [0-9.]+ % on 2")
        self.assertRegex(table, r"deck strong, error of the model, .*: [+-][0-9.]+ % on 1, [+-][0-9.]+ % on 2")
        self.check_figures(json.loads(Path("out/node.json").read_text()))
        _, said = self.measure("--gpus", 2, code=2)
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("holds a measurement already", said)

    def check_figures(self, node):
        """node.json against what the runs have left."""
        losses, = [one for one in node["scaling"] if one["part"] == "losses"]
        self.assertLess(losses["relative_spread"]["training_loss"], 1e-5)
        self.assertLess(losses["relative_spread"]["validation_loss"], 1e-5)
        self.assertEqual(node["facts"]["measured"], "1 2 ranks")
        run, = [run for run in node["runs"] if run["part"] == "nccl"]
        folder = Path("out/runs/deck.nccl.nccl.2")
        summary = json.loads((folder / "summary.json").read_text())
        self.assertEqual(run["tokens_per_second"], summary["tokens_per_second"])
        self.assertEqual(run["training_seconds"], summary["train_seconds"])
        self.assertEqual(run["memory_bytes"], summary["peak_memory_bytes"])
        times = sorted(step["ms"] for step in steps_of(folder)[3:])
        self.assertEqual((len(times), run["step_ms"]), (12, (times[5] + times[6]) / 2))
        self.assertRegex((folder / "log.txt").read_text(), "window  896")
        windows = [[stage["window"] for stage in run["stages"]] for run in node["runs"] if run["part"] == "windows"]
        self.assertEqual(windows, [[128, 896, 1792]] * 2)

    def test_small_validation_shard(self):
        """Of a few tokens more than one sequence."""
        Path("text").write_text("x" * 300)
        subprocess.run([small_run.PROGRAM, "shard", "shards/val.h5", "text", "--text", "--force"], check=True,
                       stdout=subprocess.DEVNULL)
        table, _ = self.measure("--gpus", 1, "--only", "whole")
        (_, row), = self.rows(table).items()
        self.assertEqual(row["result"], "ok")
        self.assertGreater(float(row["validation loss"]), 0)
        self.assertIn("- validation tokens of the whole schedule of deck: 256\n", table)

    def test_paths_that_are_no_bare_words(self):
        name = "it's [a] \"é\" *?\\ $x #"
        Path("shards").rename(name)
        table, _ = self.measure("--gpus", 1, "--steps", 2, "--only", "losses,strong", "--data", name, "--out",
                                f"out {name}", "--", "comm.gradients='bf16'", 'comm.transport="auto"')
        rows = self.rows(table)
        self.assertEqual({row["result"] for row in rows.values()}, {"ok"})
        self.assertEqual(set(rows), {("deck", "losses", "strong", "1"), ("deck", "strong", "ranks1_repeat1", "1"),
                                     ("deck", "strong", "report", "")})
        Path(name).rename("shards")
        Path("[s]").mkdir()
        _, said = self.measure("--gpus", 1, "--data", "[s]", "--out", "other", code=2)
        self.assertIn("/[s] holds no token shards *train*.h5", said)

    def test_runs_that_fail(self):
        shutil.copy("shards/train.h5", "shards/train_1.h5")
        Path("shards/train.h5").write_text("nonsense")
        table, _ = self.measure("--gpus", 1, "--steps", 2, "--only", "nccl,strong", code=1)
        rows = self.rows(table)
        failed = rows["deck", "strong", "ranks1_repeat1", "1"]["result"]
        self.assertRegex(failed, r"^FAILED \(3\): nanorun: .*train\.h5.*; see .*\.log$")
        self.assertRegex(rows["deck", "strong", "report", ""]["result"], r"^FAILED \(1\): no run has finished")
        self.assertEqual(rows["deck", "nccl", "", ""]["result"], "skipped: needs two GPUs")

    def test_without_modules(self):
        """The table needs none, the report of the studies does."""
        Path("modules").mkdir()
        Path("modules/numpy.py").write_text("raise ImportError('broken')\n")
        table, _ = self.measure("--gpus", 2, "--steps", 2, "--only", "weak", PYTHONPATH=str(self.folder / "modules"))
        rows = self.rows(table)
        tokens = [json.loads(Path(f"out/report/deck/weak/ranks{n}_repeat1/summary.json").read_text())["tokens"]
                  for n in (1, 2)]
        self.assertEqual(tokens, [2 * 256, 2 * 2 * 256])
        self.assertEqual({rows["deck", "weak", f"ranks{n}_repeat1", n]["result"] for n in "12"}, {"ok"})
        self.assertRegex(table, r"deck weak, efficiency: 100.0 % on 1, [0-9.]+ % on 2")
        self.assertRegex(rows["deck", "weak", "report", ""]["result"], "^skipped: .*no module numpy")
        self.assertRegex(table, r"\n- phases are missing: .*no module h5py")
        measured = [sys.executable, "-B", ROOT / "jobscripts/tools/measure_node.py", "out"]
        again = subprocess.run(measured, text=True, stdout=subprocess.PIPE, check=True)
        steps = self.cells(again.stdout.partition("\n## ")[2])
        self.assertEqual([float(row["backward"]) > 0 for row in steps], [True, True])

    def test_outputs_that_are_damaged(self):
        self.measure("--gpus", 1, "--steps", 2, "--only", "losses")
        measured = [sys.executable, "-B", ROOT / "jobscripts/tools/measure_node.py", "out"]
        metrics = Path("out/runs/deck.losses.strong.1/metrics.jsonl")
        whole = metrics.read_text()
        (metrics.parent / "trace.h5").write_text("nonsense")
        for text, result, phases in ((whole, "ok", "- phases are missing: out/runs/deck.losses.strong.1/trace.h5: "),
                                     (whole.replace('"ms"', '"mm"'), "FAILED (", "step 1 is not whole"),
                                     (whole.replace("{", "["), "FAILED (", "metrics.jsonl: line 1: not JSON"),
                                     ("", "FAILED (", "metrics.jsonl: holds no steps")):
            metrics.write_text(text)
            again = subprocess.run(measured, text=True, capture_output=True)
            self.assertEqual((again.returncode, again.stderr), (0 if result == "ok" else 1, ""))
            (_, row), = self.rows(again.stdout).items()
            self.assertTrue(row["result"].startswith(result), row)
            self.assertIn(phases, again.stdout)

    def test_shards_from_bin_files(self):
        """Each .bin file has its shard after a call, also where an earlier call has made some of them."""
        for kind in ("train", "val"):
            Path(f"shards/{kind}.h5").unlink()
            for i in (1, 2):
                subprocess.run([small_run.PROGRAM, "export", self.shard, f"shards/text_{kind}_{i}.bin"], check=True)
        made = [f"shards/text_{kind}_{i}.h5" for kind in ("train", "val") for i in (1, 2)]
        subprocess.run([small_run.PROGRAM, "shard", "shards/text_train_1", "shards/text_train_1.bin"], check=True,
                       stdout=subprocess.DEVNULL)
        before = os.stat(made[0]).st_mtime_ns
        self.measure("--gpus", 1, "--steps", 2, "--only", "losses", "--", "model.vocabulary=50257")
        subprocess.run([small_run.PROGRAM, "verify", *made], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(os.stat(made[0]).st_mtime_ns, before, "what is there is not made again")

    def test_last_words(self):
        """Of the study's tool as of the program, before those of the launcher."""
        for said in ("nanorun: no data", "scaling_study.py: no deck"):
            Path("log").write_text(f"begin\n{said}\nmpirun has ended\n\n")
            self.assertEqual(last_words(Path("log")), said)

    def test_last_words_of_mpirun(self):
        """Its lines lie between rulers; a rank that a signal has ended is the cause of what others say."""
        ruler = 74 * "-"
        killed = "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed)."
        for text, said in (
                (f"nanorun: rank 0: no answer\n{ruler}\n{killed}\n{ruler}\n", killed),
                (f"begin\n{ruler}\nprte {killed[7:]}\n{ruler}\n1 more process\n", f"prte {killed[7:]}"),
                (f"{ruler}\nThere are not enough slots.\n{ruler}\n", "There are not enough slots."),
                (f"{ruler}\n", "")):
            Path("log").write_text(text)
            self.assertEqual(last_words(Path("log")), said)


if __name__ == "__main__":
    small_run.main()
