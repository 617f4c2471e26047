"""A node is measured: a small deck on one and two ranks of this machine in place of GPUs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import ROOT, ScalingTest, small_run

import measure_node

SCRIPT = ROOT / "jobscripts" / "measure_node.sh"
PASSING = "#!/usr/bin/env bash\n[[ $1 == --gtest_color=no ]] && echo '[  PASSED  ] 3 tests.'\n"
FAILING = "#!/usr/bin/env bash\necho 'nanorun: ranks | differ' >&2\nexit 9\n"
STAGES = """
extension_steps = 6
untie_step = 49
[[stage]]
share = 0.5
length = 128
short_window = 16
long_window = 48
targets = [1, 0.5]
prefix = 0.25
[[stage]]
share = 0.5
length = 256
short_window = 32
long_window = 96
[[stage]]
share = 0
length = 256
short_window = 48
long_window = 128
[optimizer]
adam_period = 2
muon_momentum_cooldown = 10
"""
# Ranks leave the cores to other tests while they wait.
SHARED_CORES = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def alive(pid):
    return Path(f"/proc/{pid}").exists()


class MeasureNode(ScalingTest):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-shard-")
        cls.addClassCleanup(temporary.cleanup)
        cls.shard = Path(temporary.name) / "data.h5"
        small_run.write_data(cls.shard.parent)

    def setUp(self):
        super().setUp()
        Path("shards").mkdir()
        for kind in ("train", "val"):
            shutil.copy(self.shard, f"shards/{kind}.h5")
        Path("bin").mkdir()
        self.program = self.folder / "bin" / "nanorun"
        self.program.symlink_to(small_run.PROGRAM)
        self.path = f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"

    def write_staged(self):
        """staged.toml: the small deck with a tied head and stages, which name a table of prefixes."""
        deck = Path("deck.toml").read_text().replace("layers = 4", "layers = 4\ntied_head = true")
        deck = deck.replace("first = 128\nlast = 256", 'kind = "tokens_before"').replace("steps = 12", "steps = 100")
        deck = deck.replace('end = "wrap"', 'end = "wrap"\nprefix_table = "data/vocab.bpe"')
        Path("staged.toml").write_text(deck.replace("sequences = 4\nlength = 256\n", f"sequences = 4{STAGES}"))

    def stub(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def measure(self, *arguments, code=0, **variables):
        """Exit code is `code`; returns standard output and standard error."""
        job = subprocess.run([SCRIPT, "--program", self.program, "--deck", "deck.toml", "--data", "shards", "--out",
                              "out", *map(str, arguments)], text=True, stdin=subprocess.DEVNULL, capture_output=True,
                             env=os.environ | SHARED_CORES | {"PATH": self.path} | variables)
        self.assertEqual(job.returncode, code, job.stdout + job.stderr)
        return job.stdout, job.stderr

    def rows(self, table):
        """Cells by heading of each row, by deck, part, run and ranks."""
        return {tuple(row.values())[:4]: row for row in self.cells(table.partition("\n## ")[0])}

    def cells(self, table):
        """Cells by heading of each row."""
        heading, _, *lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
                              if line.startswith("|")]
        self.assertEqual({len(line) for line in lines}, {len(heading)})
        return [dict(zip(heading, line)) for line in lines]

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
                self.assertEqual((row["result"], row["steps"]), ("ok", "15" if key[0] == "nccl" else "6"))
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
        times = sorted(step["ms"] for step in self.steps_of(folder)[3:])
        self.assertEqual((len(times), run["step_ms"]), (12, (times[5] + times[6]) / 2))
        self.assertRegex((folder / "log.txt").read_text(), "window  896")
        windows = [[stage["window"] for stage in run["stages"]] for run in node["runs"] if run["part"] == "windows"]
        self.assertEqual(windows, [[128, 896, 1792]] * 2)

    def steps_of(self, folder):
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if "loss" in line]

    def test_two_decks(self):
        """Each part of its kind of decks, by stages."""
        self.write_staged()
        table, _ = self.measure("--deck", "staged.toml", "--gpus", 2, "--steps", 20, "--only",
                                "windows,stages,nccl,whole")
        rows = self.rows(table)
        self.assertEqual(list(rows), [
            *(("staged", "stages", kind, n) for kind in ("weak", "strong") for n in "12"),
            *(("deck", "windows", "weak", n) for n in "12"),
            ("deck", "whole", "12_of_12_steps", "2"), ("staged", "whole", "100_of_100_steps", "2"),
            ("deck", "nccl", "nccl", "2"), ("staged", "nccl", "nccl", "2")])
        self.assertEqual({row["result"] for row in rows.values()}, {"ok"}, table)
        steps = {(row["run"], row["ranks"], row["stage"]): row for row in self.cells(table.partition("\n## ")[2])
                 if row["part"] == "stages"}
        self.assertEqual(len(steps), 12)
        for (run, ranks, stage), row in steps.items():
            window, length = {"1": ("48", 128), "2": ("96", 256), "3": ("128", 256)}[stage]
            tokens = length * (8 if run == "strong" else int(ranks))
            self.assertEqual((row["window"], row["tokens"], row["steps"]),
                             (window, str(tokens), "2" if stage == "3" else "9"))
            self.assertEqual(row["hidden"], "0%" if ranks == "2" else "")
        self.check_stages(json.loads(Path("out/node.json").read_text()))
        self.assertRegex(table, r"staged stages strong, stage 2 with window 96, efficiency: 100.0 % on 1, .* % on 2\n")
        self.assertRegex(table, r"staged stages strong, relative spread of training loss over rank counts: .*e-")
        deck = Path("out/runs/staged.stages.weak.2/deck.toml").read_text()
        for line in ("steps = 20", "extension_steps = 2", "untie_step = 9", "muon_momentum_cooldown = 2",
                     'prefix_table = ""'):
            self.assertIn(f"\n{line}  #", deck)

    def check_stages(self, node):
        """Medians and phases of node.json against metrics.jsonl and trace.h5."""
        import h5py

        run, = [run for run in node["runs"] if run["part"] == "stages" and run["run"] == "weak" and run["ranks"] == 2]
        folder = Path("out/runs/staged.stages.weak.2")
        second = [step["ms"] for step in self.steps_of(folder)][9:18]
        self.assertEqual(run["stages"][1]["step_ms"], sum(sorted(second[1:])[3:5]) / 2)
        with h5py.File(folder / "trace.h5") as file:
            phases, seconds = file.attrs["phases"].decode().split(","), file["seconds"][...]
        times = (seconds[10:18].sum(axis=2) - seconds[10:18, :, phases.index("output")]).max(axis=1)
        middle = sorted(sorted(range(8), key=lambda i: times[i])[2:6])
        backward = seconds[10:18][middle][:, :, phases.index("backward")].mean() * 1e3
        self.assertAlmostEqual(run["stages"][1]["phases_ms"]["backward"], backward, places=9)

    def test_budget(self):
        table, _ = self.measure("--gpus", 2, "--minutes", 1, "--steps", 400, "--only", "windows,losses")
        rows = self.rows(table)
        self.assertEqual([row["result"].split(",")[0] for row in rows.values()],
                         ["skipped: needs about 82 s", "skipped: needs about 402 s"])
        self.assertEqual(list(Path("out/runs").iterdir()), [])

    def test_whole_schedule(self):
        deck = Path("deck.toml")
        deck.write_text(deck.read_text().replace("steps = 12", "steps = 2000").replace("length = 256", "length = 128"))
        table, _ = self.measure("--gpus", 2, "--minutes", 1, "--only", "whole")
        (*_, run, _), row = next(iter(self.rows(table).items()))
        self.assertRegex(run, r"^shortened_to_1[0-3]\d_of_2000_steps$")
        self.assertEqual((row["result"], row["steps"]), ("ok", run.split("_")[2]))
        self.assertGreater(float(row["validation loss"]), 0)
        deck.write_text(deck.read_text().replace("steps = 2000", "steps = 12"))
        table, _ = self.measure("--gpus", 2, "--only", "nccl,whole", "--out", "other", "--steps", 2)
        self.assertEqual([key[1:3] for key in self.rows(table)], [("whole", "12_of_12_steps"), ("nccl", "nccl")])

    def test_long_schedule_waits(self):
        """For the other parts, where it takes more than a third of the time."""
        deck = Path("deck.toml")
        deck.write_text(deck.read_text().replace("steps = 12", "steps = 70"))
        table, _ = self.measure("--gpus", 2, "--minutes", 1, "--steps", 2, "--only", "nccl,whole")
        self.assertEqual([key[1:3] for key in self.rows(table)], [("nccl", "nccl"), ("whole", "70_of_70_steps")])

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
        self.assertRegex(rows["deck", "strong", "ranks1_repeat1", "1"]["result"], r"^FAILED \(3\): nanorun: .*train\.h5")
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
        for kind in ("train", "val"):
            Path(f"shards/{kind}.h5").unlink()
            subprocess.run([small_run.PROGRAM, "export", self.shard, f"shards/text_{kind}_1.bin"], check=True)
        shutil.copy(self.shard, "shards/only_train.h5")  # makes the shard of the .bin file of its kind needless
        self.measure("--gpus", 1, "--only", "nccl", "--out", "first")
        self.assertFalse(Path("shards/text_train_1.h5").exists())
        Path("shards/only_train.h5").unlink()
        self.measure("--gpus", 1, "--only", "nccl")
        subprocess.run([small_run.PROGRAM, "verify", "shards/text_train_1.h5", "shards/text_val_1.h5"], check=True)

    def test_last_words(self):
        """Of the study's tool as of the program, before those of the launcher."""
        for said in ("nanorun: no data", "scaling_study.py: no deck"):
            Path("log").write_text(f"begin\n{said}\nmpirun has ended\n\n")
            self.assertEqual(measure_node.last_words(Path("log")), said)

    def test_wrong_inputs(self):
        Path("empty").mkdir()
        Path("broken").mkdir()
        Path("broken/train.bin").write_text("nonsense")
        Path("file").touch()
        Path("copy").mkdir()
        shutil.copy("deck.toml", "copy")
        Path("broken.toml").write_text("[train\n")
        wrong = [(["--minutes", 0], "--minutes must be a positive whole number"), (["--minutes", 8.5], "not \"8.5\""),
                 (["--steps", "4x"], "--steps must be"),
                 (["--gpus", 0], "--gpus must be"), (["--only", "windows,fast"], '--only: "fast" is none of the parts'),
                 (["--only", ""], '--only: "" is none of the parts stages windows'),
                 (["--only", "windows losses"], '--only: "windows losses" is none of the parts'),
                 (["--deck", "copy/deck.toml"], "--deck: two decks are called deck"),
                 (["--deck", "broken.toml"], "broken.toml: not TOML: "),
                 (["--", "train.steps=many"], "train.steps should be a whole number, not 'many'"),
                 (["--out"], "--out needs a value"), (["train.steps=4"], "unknown argument train.steps=4"),
                 (["--program", "none"], "none: no such program"), (["--deck", "none"], "none: no such deck"),
                 (["--data", "none"], "none: no such directory"), (["--data", "empty"], "holds no token shards"),
                 (["--out", "file"], "file: the directory cannot be made")]
        for arguments, message in wrong:
            with self.subTest(arguments=arguments):
                _, said = self.measure("--gpus", 1, *arguments, code=2)
                self.assertEqual(said.count("\n"), 1, said)
                self.assertTrue(said.startswith("measure_node.sh: "))
                self.assertIn(message, said)
        _, said = self.measure("--gpus", 1, "--data", "broken", code=3)
        self.assertRegex(said, r"^measure_node.sh: nanorun: .*broken/train.bin.*\n$")
        self.assertFalse(Path("out/runs.tsv").exists())

    def test_without_gpus(self):
        self.stub("nvidia-smi", "#!/usr/bin/env bash\nexit 9\n")
        _, said = self.measure(code=2, PATH=f"{self.folder / 'bin'}{os.pathsep}{self.path}")
        self.assertEqual(said, "measure_node.sh: nvidia-smi sees no GPU; --gpus N measures N ranks without one\n")

    def test_tests_on_four_and_on_all_ranks(self):
        self.stub("test_rank_count", PASSING)
        for gpus, ranks in ((4, ["4"]), (8, ["4", "8"])):
            table, _ = self.measure("--gpus", gpus, "--only", "faults", "--out", f"out{gpus}")
            rows = self.rows(table)
            self.assertEqual([key[3] for key in rows if key[2] == "test_rank_count"], ranks)
            self.assertEqual({row["result"] for key, row in rows.items() if key[2] == "test_rank_count"}, {"3 passed"})

    def test_interrupted(self):
        """No run is left behind, and the table has those that had ended."""
        self.stub("mpirun", "#!/usr/bin/env bash\n[[ $2 == 1 ]] && exit 5\n"
                            "echo $$ >pid.new && mv pid.new pid\nexec sleep 60\n")
        job = subprocess.Popen([SCRIPT, "--program", self.program, "--deck", "deck.toml", "--data", "shards", "--out",
                                "out", "--gpus", "2"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL,
                               env=os.environ | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{self.path}"})
        while not Path("pid").exists():
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(30), 130)
        pid, limit = int(Path("pid").read_text()), time.monotonic() + 30
        while alive(pid) and time.monotonic() < limit:
            time.sleep(0.01)
        self.assertFalse(alive(pid))
        self.assertIn("| deck | windows | weak | 1 | FAILED (5)", Path("out/table.md").read_text())


if __name__ == "__main__":
    small_run.main()
