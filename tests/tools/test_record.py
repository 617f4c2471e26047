"""jobscripts/record.sh: real runs of a small deck with several seeds, and the verdict on them."""

import contextlib
import fcntl
import io
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import ROOT, ToolTest, small_run
from test_get_fineweb import FIRST, VALIDATION, Server, bin_file

import deadline
import ensemble
import program
import record
import tool

sys.path.append(str(ROOT / "tests" / "fault"))
import small_record89  # noqa: E402

SCRIPT = ROOT / "jobscripts" / "record.sh"
SHORT = "train.steps=6"


class RecordTest(ToolTest):
    def setUp(self):
        super().setUp()
        small_run.write_deck(self.folder)
        self.variables = {"PATH": f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"}

    def record(self, *arguments, deck="deck.toml", code=0):
        """Exit code is `code`; returns standard output and standard error."""
        job = deadline.run([SCRIPT, deck, "--program", small_run.PROGRAM, *map(str, arguments)], text=True,
                           stdin=subprocess.DEVNULL, capture_output=True, env=os.environ | self.variables,
                           timeout=120)
        self.assertEqual(job.returncode, code, job.stdout + job.stderr)
        return job.stdout, job.stderr

    def refuse(self, *arguments, names, deck="deck.toml"):
        """Within this process: what is wrong is named before anything is trained."""
        words = ["record.sh", str(deck), "--program", small_run.PROGRAM, *map(str, arguments)]
        with mock.patch.object(sys, "argv", words), mock.patch.dict(os.environ, self.variables):
            with contextlib.redirect_stdout(io.StringIO()) as said, self.assertRaises(tool.ToolError) as caught:
                record.main()
        self.assertEqual((said.getvalue(), caught.exception.code), ("", tool.WRONG))
        self.assertIn(names, str(caught.exception))

    def summaries(self, seeds, out="outputs/deck_runs"):
        return [json.loads(Path(out, f"seed_{seed}", "summary.json").read_text()) for seed in seeds]


class Runs(RecordTest):
    def setUp(self):
        super().setUp()
        small_run.write_data(self.folder)

    def test_seeds_and_verdict(self):
        """The second command makes the third run alone."""
        out = Path("outputs/deck_runs")
        said, _ = self.record("--seeds", 2, "--ranks", 1, "--target", 0.5, "--", SHORT, code=record.MISSED)
        self.assertRegex(said, r"\nThe bar of --target 0\.5 does not hold \(mean validation loss below 0\.5 with p < ")
        first = [(out / f"seed_{seed}.log").stat().st_mtime_ns for seed in (1, 2)]
        said, _ = self.record("--seeds", 3, "--ranks", 1, "--target", 9, "--", SHORT)
        self.assertRegex(said, r"^seed 1 of 3: has finished\nseed 2 of 3: has finished\nseed 3 of 3: trains on 1 rank;")
        self.assertEqual([(out / f"seed_{seed}.log").stat().st_mtime_ns for seed in (1, 2)], first)

        losses, seconds = zip(*((run["final_val_loss"], run["train_seconds"]) for run in self.summaries((1, 2, 3))))
        self.assertEqual(len(set(losses)), 3)
        found = json.loads((out / "record.json").read_text())
        self.assertEqual((found["holds"], found["target"], found["ranks"], found["overrides"]), (True, 9, 1, [SHORT]))
        self.assertEqual([run["validation_loss"] for run in found["runs"]], list(losses))
        self.assertEqual([run["data"]["train"]["shards"] for run in found["runs"]], [1, 1, 1])
        self.assertEqual([run["provenance"] for run in found["runs"]],
                         [run["provenance"] for run in self.summaries((1, 2, 3))])
        self.assertEqual((found["mean_validation_loss"], found["deviation"], found["mean_train_seconds"]),
                         (statistics.mean(losses), statistics.stdev(losses), statistics.mean(seconds)))
        table = (out / "record.txt").read_text()
        self.assertTrue(said.endswith(table), said)
        self.assertIn(f"     mean  {'':8}  ", table)
        self.assertRegex(table, rf"\n +3 +6 .* {losses[2]:.5f} +{seconds[2]:.2f} s\n")
        self.assertRegex(table, r"\nThe bar of --target 9 holds \(.*\): [0-9.]+, p = [0-9.e-]+\.\n$")

        self.assertRegex(table, rf"^deck\.toml {SHORT} on 1 rank, 20[^ ]*, nanorun [0-9.]+")
        for words, names in ((("--ranks", 1, "--", "train.steps=7"), "deck_runs/seed_1 is a run with train.steps = 6"),
                             (("--ranks", 1, "--", SHORT, "run.reproducible=true"), "with run.reproducible = false"),
                             (("--ranks", 2, "--", SHORT), "deck_runs/seed_1 is a run with ranks = 1, not 2")):
            self.refuse("--seeds", 3, *words, names=names)
        shutil.rmtree(out / "seed_2")
        shutil.copytree(out / "seed_1", out / "seed_2")
        words = ("--seeds", 3, "--ranks", 1, "--", SHORT)
        self.refuse(*words, names="deck_runs/seed_2 is a run with run.seed = 1, not 2")
        (out / "seed_2" / "deck.toml").unlink()
        self.refuse(*words, names="deck_runs/seed_2 is a finished run without deck.toml")

    def test_a_small_record_89(self):
        keys = [key for key in small_record89.SMALL if not key.startswith(("run.name=", "data.train="))]
        said, _ = self.record("--seeds", 2, "--ranks", 2, "--target", 9, "--", *keys, 'data.train=["data.h5"]',
                              "data.end=wrap", deck=small_record89.DECK)
        runs = self.summaries((1, 2), "outputs/record89_runs")
        self.assertEqual([run["steps"] for run in runs], [small_record89.STEPS] * 2)
        for run in runs:
            self.assertLess(run["final_val_loss"], math.log(257) - 1)  # untrained, every token is as likely
        self.assertRegex(said, rf"\n +2 +{small_record89.STEPS} .* {runs[1]['final_val_loss']:.5f} ")

    def test_a_run_that_was_stopped_goes_on(self):
        words = ("--seeds", 1, "--ranks", 1, "--out", "it's [a]", "--", SHORT)
        _, error = self.record(*words, "stop.step=4", code=1)
        self.assertRegex(error, r"^record\.sh: .*/it's \[a\]/seed_1: stopped early; the same command continues it\n$")
        said, _ = self.record(*words, code=record.MISSED)
        self.assertIn("restarted from the checkpoint of step 4", Path("it's [a]/seed_1/log.txt").read_text())
        self.assertEqual([run["steps"] for run in self.summaries([1], "it's [a]")], [6])
        self.assertRegex(said, r": one run has no p-value\.\nContinued from a checkpoint: seed 1\. ")
        log = Path("it's [a]/seed_1.log").read_text()
        self.assertEqual(log.count("\n$ "), 2)
        self.assertLess(log.index("stopped at step 4"), log.index("restarted from the checkpoint of step 4"))

    def test_one_at_a_time(self):
        Path("runs").mkdir()
        with open("runs/lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.refuse("--seeds", 1, "--ranks", 1, "--out", "runs", names="runs/lock: another command works in this")

    def test_other_tokens_are_noticed(self):
        words = ("--ranks", 1, "--out", "runs", "--", SHORT)
        self.record("--seeds", 1, *words, code=record.MISSED)
        small_run.write_data(self.folder, seed=8)
        _, error = self.record("--seeds", 2, *words, code=2)
        self.assertRegex(error, r"^record\.sh: .*/runs/seed_2 has read other tokens than .*/runs/seed_1: the files of "
                                r"data\.(train|validation) have changed;")
        self.refuse("--seeds", 3, *words, names="/runs/seed_2 has read other tokens")

    def test_a_signal_leaves_a_checkpoint(self):
        """Ctrl-C, and what a batch system may send."""
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            command = [SCRIPT, "deck.toml", "--program", small_run.PROGRAM, "--seeds", "1", "--ranks", "2", "--out",
                       f"runs{number}", "--", "train.steps=100000"]
            job = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, env=os.environ | self.variables)
            self.addCleanup(job.kill)
            log = Path(f"runs{number}", "seed_1.log")
            limit = time.monotonic() + 60
            while not (log.exists() and "\nstep     3/" in log.read_text()):
                self.assertLess(time.monotonic(), limit)
                time.sleep(0.01)
            job.send_signal(number)
            _, error = deadline.communicate(job, 60)
            self.assertEqual(job.returncode, 1)
            self.assertEqual(error, "stopping with a checkpoint; another signal ends the run without one\nrecord.sh: "
                                    "interrupted; the same command goes on, and a run from its last checkpoint\n")
            self.assertRegex(log.read_text(), r"\nstopped at step \d+: SIGUSR2 received;")
            self.assertEqual(len(list(Path(f"runs{number}", "seed_1", "checkpoints").glob("checkpoint_*.h5"))), 1)

    def test_a_run_that_fails_ends_the_command(self):
        said, error = self.record("--seeds", 2, "--ranks", 1, "--", "optimizer.lr_head=1e30", code=1)
        self.assertRegex(error, r"^record\.sh: .*/seed_1: exit code 5: nanorun: .* \(see .*/seed_1\.log\)\n$")
        self.assertNotIn("seed 2", said)

    def test_data_elsewhere(self):
        Path("a [b]").mkdir()
        Path("data.h5").rename("a [b]/data.h5")
        self.record("--seeds", 1, "--ranks", 1, "--data", "a [b]", "--", SHORT, code=record.MISSED)
        _, error = self.record("--seeds", 1, "--ranks", 1, "--out", "x", "--", SHORT, code=1)
        self.assertRegex(error, r"^record\.sh: .*/x/seed_1: exit code 3: nanorun: data\.h5: no such file \(see .*\n$")


class Fetching(RecordTest):
    def setUp(self):
        super().setUp()
        text = small_run.DECK.replace('train = ["data.h5"]', 'train = ["data/fineweb_train_*.h5"]')
        text = text.replace('validation = ["data.h5"]', 'validation = ["data/fineweb_val_*.h5"]')
        Path("deck.toml").write_text(text.replace("vocabulary = 257", "vocabulary = 50257"))
        Path("modules").mkdir()
        Path("modules/huggingface_hub.py").write_text("raise ImportError\n")
        self.server = Server()
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.server.files = {f"{VALIDATION}.bin": bin_file(3000, 1)}
        self.variables |= {"HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_address[1]}",
                           "no_proxy": "127.0.0.1", "PYTHONPATH": str(self.folder / "modules")}

    def test_what_is_missing_is_fetched(self):
        words = ("--seeds", 1, "--shards", 1, "--ranks", 1, "--data", "tokens", "--", "train.steps=2")
        said, error = self.record(*words, code=2)
        self.assertRegex(error, rf"^record\.sh: tokens lacks {VALIDATION}\.h5, 1 of 1 files fineweb_train_\*\.h5, and "
                                rf"http:.*/{FIRST}\.bin: the server says 404 .*\n$")
        self.server.files[f"{FIRST}.bin"] = bin_file(5000, 2)
        said, _ = self.record(*words, code=record.MISSED)
        self.assertRegex(said, r"^tokens lacks 1 of 1 files fineweb_train_\*\.h5: fetching\n")
        self.assertEqual([name for name, _ in self.server.asked].count(f"{VALIDATION}.bin"), 1)
        self.server.asked.clear()
        Path("tokens", f"{FIRST}.h5").unlink()
        Path("tokens", f"{FIRST}.bin").unlink()
        self.record(*words, code=record.MISSED)
        self.assertEqual(self.server.asked, [])

    def test_the_table_of_the_tokenizer(self):
        _, error = self.record("--seeds", 1, "--ranks", 1, deck=ROOT / "inputs" / "record89.toml", code=2)
        self.assertRegex(error, r"^record\.sh: data lacks .*, vocab\.bpe, and http:.*/merges\.txt: the server says 404")

    def test_other_data_are_not_fetched(self):
        for patterns, name, directory in ((["data/fineweb_train_*.h5"], FIRST, "data"), (["*.h5"], FIRST, "."),
                                          (["a \\[b\\]/fineweb_train_*.h5"], FIRST, "a [b]"),
                                          (["data/books_*.h5"], FIRST, None), (["d*/fineweb_train_*.h5"], FIRST, None),
                                          (["a/fineweb_train_*.h5", "b/fineweb_train_*.h5"], FIRST, None),
                                          (["data/fineweb_train_*.bin"], FIRST, None)):
            with self.subTest(patterns=patterns):
                self.assertEqual(record.fineweb_directory(patterns, f"{name}.h5"), directory and Path(directory))


class Arguments(RecordTest):
    def test_wrong_arguments(self):
        Path("file").touch()
        wrong = [(["--seeds", 0], "--seeds must be"), (["--seeds", 2, "--ranks", 0], "--ranks must be"),
                 (["--seeds", 2, "--target", "nan"], "--target must be"),
                 (["--seeds", 2, "--shards", 104], "--shards: "),
                 (["--seeds", 2, "--program", "none"], "none: no such program"),
                 (["--seeds", 2, "--program", "/bin/true"], "true has printed no deck: it is not nanorun"),
                 (["--seeds", 2, "--out", "file"], "--out: file: "),
                 (["--seeds", 2, "--ranks", 3], "the 4 sequences of a step cannot be divided among 3 ranks"),
                 (["--seeds", 2, "--", "run.seed=9"], "run.seed is set by record.sh itself"),
                 (["--seeds", 2, "run.log_every=1"], "follow after --, as in -- run.log_every=1"),
                 (["--seeds", 2, "--", "x"], "after --: \"x\" is not of the form section.key="),
                 (["--seeds", 2, "--", "model.wide=1"], "model.wide"),
                 (["--seeds", 2, "--", "validation.tokens=0"], "deck.toml: it has no validation")]
        for arguments, names in wrong:
            with self.subTest(arguments=arguments):
                self.refuse(*arguments, names=names)
        self.refuse("--seeds", 2, names="none.toml: No such file", deck="none.toml")
        _, error = self.record("--seeds", 2, "--out", "", code=2)
        self.assertIn("record.sh: error: argument --out: the name of the directory is empty\n", error)


class LastWords(RecordTest):
    def test_of_a_killed_rank(self):
        ruler = 26 * "-"
        noticed = "mpirun noticed that process rank 0 with PID 7 on node a exited on signal 9 (Killed)."
        self.assertEqual(program.last_words(f"step 1\n{ruler}\n{noticed}\n{ruler}\n"), noticed)
        self.assertEqual(program.last_words(f"nanorun: no\n{noticed}\n{ruler}\n"), "nanorun: no")
        self.assertEqual(program.last_words(f"{ruler}\n"), "no message")


class Verdict(RecordTest):
    def judge(self, *losses, target=3.28):
        return record.judge([ensemble.Sample(seed, 9, loss, loss, 1.0) for seed, loss in enumerate(losses)], target)

    def test_target_loss_holds_with_99_percent_confidence(self):
        """Losses with a deviation of 0.01: the 0.99 quantile for two degrees of freedom is 6.964557."""
        reach = 6.964557 * 0.01 / 3**0.5
        for target, holds in ((3.27 + reach + 1e-5, True), (3.27 + reach - 1e-5, False), (3.26, False)):
            found, said = self.judge(3.26, 3.27, 3.28, target=target)
            self.assertEqual((found, " holds (" in said), (holds, holds), said)
        self.assertEqual(self.judge(3.0)[0], False)

    def test_same_data(self):
        """Other tokens in another number of shards are others too, unless a run that packs documents opened more."""
        one, two = ({"shards": n, "tokens": 9, "checksum": "0"} for n in (1, 2))
        for packing, second, same in (("stream", {"train": one, "validation": one}, True),
                                      ("stream", {"train": two, "validation": one}, False),
                                      ("documents", {"train": two, "validation": one}, True),
                                      ("documents", {"train": one | {"checksum": "1"}, "validation": one}, False),
                                      ("documents", {"train": one, "validation": two}, False), ("stream", {}, True)):
            for seed, data in enumerate(({"train": one, "validation": one}, second), 1):
                Path(f"seed_{seed}").mkdir(exist_ok=True)
                summary = {"finished": True, "final_val_loss": 3.0, "data": data}
                Path(f"seed_{seed}", "summary.json").write_text(json.dumps(summary))
            runs = SimpleNamespace(arguments=SimpleNamespace(seeds=2), deck={"data.packing": packing},
                                   folder=lambda seed: Path(f"seed_{seed}"))
            with self.subTest(packing=packing, second=second):
                with contextlib.nullcontext() if same else self.assertRaises(tool.ToolError):
                    record.require_same_data(runs)

    def test_continued_and_mixed_runs_are_remarked(self):
        runs = [{"seed": seed, "first_step": 0, "provenance": {"commit": "a", "devices": {"H100": 8}}}
                for seed in (1, 2, 3)]
        self.assertEqual(record.remarks(runs), [])
        runs[1] |= {"first_step": 7, "provenance": {"commit": "b", "devices": {"H200": 8}}}
        continued, mixed = record.remarks(runs)
        self.assertRegex(continued, r"^Continued from a checkpoint: seed 2\. ")
        self.assertRegex(mixed, r"they differ in commit, devices\.$")

    def test_keys_of_a_start_may_change(self):
        kept = ("train.steps", "comm.transport", "checkpoint.weights", "stage", "run.seed", "run.reproducible")
        free = ("run.log_every", "stop.step", "checkpoint.every")
        self.assertEqual([key for key in (*kept, *free) if record.changes_training(key)], list(kept))


if __name__ == "__main__":
    small_run.main()
