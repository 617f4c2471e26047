"""Which parts of a node's measurement run, with which decks and on which ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from measured_node import PASSING, SCRIPT, MeasuredNode, steps_of
from support import ROOT, small_run

import deadline

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


def alive(pid):
    return Path(f"/proc/{pid}").exists()


class NodePlan(MeasuredNode):
    def write_staged(self):
        """staged.toml: the small deck with a tied head and stages, which name a table of prefixes."""
        deck = Path("deck.toml").read_text().replace("layers = 4", "layers = 4\ntied_head = true")
        deck = deck.replace("first = 128\nlast = 256", 'kind = "tokens_before"').replace("steps = 12", "steps = 100")
        deck = deck.replace('end = "wrap"', 'end = "wrap"\nprefix_table = "data/vocab.bpe"')
        Path("staged.toml").write_text(deck.replace("sequences = 4\nlength = 256\n", f"sequences = 4{STAGES}"))

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
        self.assertEqual({row["result"] for key, row in rows.items() if key[1] != "nccl"}, {"ok"}, table)
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
        second = [step["ms"] for step in steps_of(folder)][9:18]
        self.assertEqual(run["stages"][1]["step_ms"], sum(sorted(second[1:])[3:5]) / 2)
        with h5py.File(folder / "trace.h5") as file:
            phases, seconds = file.attrs["phases"].decode().split(","), file["seconds"][...]
        times = (seconds[10:18].sum(axis=2) - seconds[10:18, :, phases.index("output")]).max(axis=1)
        middle = sorted(sorted(range(8), key=lambda i: times[i])[2:6])
        backward = seconds[10:18][middle][:, :, phases.index("backward")].mean() * 1e3
        self.assertAlmostEqual(run["stages"][1]["phases_ms"]["backward"], backward, places=9)

    def test_budget(self):
        table, _ = self.measure("--gpus", 2, "--minutes", 1, "--steps", 400, "--only", "windows,losses", code=1)
        rows = self.rows(table)
        self.assertEqual([row["result"].split(",")[0] for row in rows.values()],
                         ["skipped: needs about 82 s", "skipped: needs about 402 s"])
        self.assertEqual(list(Path("out/runs").iterdir()), [])

    def test_whole_schedule(self):
        deck = Path("deck.toml")
        deck.write_text(deck.read_text().replace("steps = 12", "steps = 2000").replace("length = 256", "length = 128"))
        table, _ = self.measure("--gpus", 2, "--minutes", 2, "--only", "whole")
        (*_, run, _), row = next(iter(self.rows(table).items()))
        self.assertRegex(run, r"^shortened_to_\d{3}_of_2000_steps$")
        self.assertEqual((row["result"], row["steps"]), ("ok", run.split("_")[2]))
        self.assertGreater(float(row["validation loss"]), 0)
        deck.write_text(deck.read_text().replace("steps = 2000", "steps = 12"))
        table, _ = self.measure("--gpus", 2, "--only", "nccl,whole", "--out", "other", "--steps", 2)
        self.assertEqual([key[1:3] for key in self.rows(table)], [("whole", "12_of_12_steps"), ("nccl", "nccl")])

    def test_long_schedule_waits(self):
        """For the other parts, where it takes more than a third of the time."""
        deck = Path("deck.toml")
        deck.write_text(deck.read_text().replace("steps = 12", "steps = 100"))
        table, _ = self.measure("--gpus", 2, "--minutes", 2, "--steps", 2, "--only", "nccl,whole")
        self.assertEqual([key[1:3] for key in self.rows(table)], [("nccl", "nccl"), ("whole", "100_of_100_steps")])

    def test_wrong_inputs(self):
        Path("empty").mkdir()
        Path("broken").mkdir()
        for kind in ("train", "val"):
            Path(f"broken/{kind}.bin").write_text("nonsense")
        Path("file").touch()
        Path("copy").mkdir()
        shutil.copy("deck.toml", "copy")
        Path("broken.toml").write_text("[train\n")
        self.write_staged()
        self.stub("broken", "#!/bin/sh\necho libmpi.so.40: no such file >&2; exit 127\n")
        wrong = [(["--minutes", 0], "--minutes must be a positive whole number"), (["--minutes", 8.5], "not \"8.5\""),
                 (["--steps", "4x"], "--steps must be"),
                 (["--gpus", 0], "--gpus must be"), (["--only", "windows,fast"], '--only: "fast" is none of the parts'),
                 (["--only", ""], '--only: "" is none of the parts stages windows'),
                 (["--only", "windows losses"], '--only: "windows losses" is none of the parts'),
                 (["--deck", "copy/deck.toml"], "--deck: two decks are called deck"),
                 (["--deck", "broken.toml"], "broken.toml: not TOML: "),
                 (["--", "train.steps=many"], "train.steps should be a whole number, not 'many'"),
                 (["--out"], "--out needs a value"), (["-o"], "unknown argument -o"),
                 (["train.steps=4"], "unknown argument train.steps=4; keys of decks follow after --"),
                 (["--program", "none"], "none: no such program"),
                 (["--program", "/bin/true"], "/bin/true: not nanorun"),
                 (["--program", "bin/broken"], "name another one with --program; it says: libmpi.so.40: no such file\n"),
                 (["--only", "whole", "--", "model.widht=5"], "deck: override model.widht=5: unknown key model.widht"),
                 (["--only", "losses", "--", "model.widht=5"], "deck, --steps 40: override model.widht=5: unknown key"),
                 (["--only", "strong", "--", "window.last=x"], "deck, --steps 40: override window.last=x: "),
                 (["--gpus", 2, "--only", "nccl", "--", "comm.gradients=5"], "40: override comm.gradients=5"),
                 (["--steps", 2, "--only", "windows"], "windows of deck, --steps 2: override train.steps=2: stage."),
                 (["--deck", "staged.toml", "--steps", 2, "--only", "stages"],
                  "staged, --steps 2: override train.steps=2: stage."), (["--deck", "none"], "none: no such deck"),
                 (["--data", "none"], "none: no such directory"), (["--data", "empty"], "holds no token shards"),
                 (["--out", "file"], "file: the directory cannot be made")]
        for arguments, message in wrong:
            with self.subTest(arguments=arguments):
                _, said = self.measure("--gpus", 1, *arguments, code=2)
                self.assertEqual(said.count("\n"), 1, said)
                self.assertTrue(said.startswith("measure_node.sh: "))
                self.assertIn(message, said)
                self.assertEqual(list(Path().glob("out*")), [], "nothing was made")
        _, said = self.measure("--gpus", 1, "--data", "broken", code=3)
        self.assertRegex(said, r"^measure_node.sh: nanorun: .*broken/train.bin.*\n$")
        self.assertFalse(Path("out/runs.tsv").exists())

    def test_help(self):
        """Names every part, default and exit code."""
        said = subprocess.run([SCRIPT, "--help"], text=True, stdout=subprocess.PIPE, check=True).stdout
        for words in ("all of stages,windows,whole,strong,weak,nccl,faults,losses)", "(default: 9)", "(default: 40)",
                      "(default: outputs/node)", f"(default: {ROOT / 'build/h100/bin/nanorun'})", "Exit codes: 0 "):
            self.assertIn(words, said)

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

    def interrupt(self, number, out):
        """Standard error of a measurement that gets a signal in its second run, which is gone then."""
        Path("pid").unlink(missing_ok=True)
        self.stub("mpirun", "#!/usr/bin/env bash\n[[ $2 == 1 ]] && exit 5\n"
                            "echo $$ >pid.new && mv pid.new pid\nexec sleep 60\n")
        job = subprocess.Popen([SCRIPT, "--program", self.program, "--deck", "deck.toml", "--data", "shards", "--out",
                                out, "--gpus", "2"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # shells cannot trap others
                               env=os.environ | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{self.path}"})
        while not Path("pid").exists():
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        job.send_signal(number)
        _, said = deadline.communicate(job, 30)
        self.assertEqual(job.returncode, 128 + number)
        pid, limit = int(Path("pid").read_text()), deadline.Deadline(30)
        while alive(pid) and not limit.over():
            time.sleep(0.01)
        self.assertFalse(alive(pid))
        return said

    def test_interrupted(self):
        """The table has the runs that had ended, and says that it is not whole."""
        for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT"), (signal.SIGHUP, "SIGHUP")):
            with self.subTest(name):
                said = self.interrupt(number, name).splitlines()[-1]
                self.assertEqual(said, f"measure_node.sh: interrupted by {name}; "
                                 f"{self.folder.resolve() / name}/table.md has the runs that had ended")
                table = Path(name, "table.md").read_text()
                self.assertTrue(table.startswith("# Measurement of a node, partial: it has not come to its end\n"))
                self.assertIn(f"\n- interrupted: by {name} in part windows\n", table)
                self.assertIn("| deck | windows | weak | 1 | FAILED (5)", table)
                self.assertFalse(json.loads(Path(name, "node.json").read_text())["whole"])

    def test_killed(self):
        """A table that nothing could mark is not whole either."""
        self.measure("--gpus", 1, "--steps", 2, "--only", "losses")
        facts = Path("out/facts.tsv")
        for ended in (True, False):
            again = subprocess.run([sys.executable, "-B", ROOT / "jobscripts/tools/measure_node.py", "out"], text=True,
                                   stdout=subprocess.PIPE, check=True)
            self.assertEqual(again.stdout.startswith("# Measurement of a node\n"), ended)
            self.assertEqual(json.loads(Path("out/node.json").read_text())["whole"], ended)
            facts.write_text("".join(line for line in facts.read_text().splitlines(True) if line[:4] != "end\t"))


if __name__ == "__main__":
    small_run.main()
