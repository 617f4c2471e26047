"""metrics.jsonl of runs that end, are killed, restart and find what others have left; where their figures come from."""

import json
import math
import os
import re
import shutil
from datetime import datetime

from harness import FaultTest, Job, losses, restarted_from, small_run

STEP_KEYS = ["step", "loss", "ms", "tokens_per_second", "tokens", "train_seconds", "lr", "momentum", "window", "gradient_norm"]
# Keys whose values do not depend on the time.
SAME = ["step", "loss", "lr", "momentum", "window", "gradient_norm"]


class Metrics(FaultTest):
    def path(self, folder=None):
        return self.run_folder(folder) / "metrics.jsonl"

    def metrics(self, folder=None):
        """Lines of steps, and of validations."""
        lines = [json.loads(line) for line in self.path(folder).read_text().splitlines()]
        return [line for line in lines if "loss" in line], [line for line in lines if "validation_loss" in line]

    def assert_same(self, steps, others):
        self.assertEqual([[step[key] for key in SAME] for step in steps],
                         [[step[key] for key in SAME] for step in others])

    def test_lines_agree_with_log_and_summary(self):
        job = self.train(2, "validation.every=6")
        steps, validations = self.metrics()
        summary = self.summary()
        self.assertEqual([list(step) for step in steps], [STEP_KEYS] * 12)
        self.assertEqual({step["step"]: round(step["loss"], 5) for step in steps}, losses(job))
        self.assertEqual(steps[-1]["loss"], summary["final_train_loss"])
        self.assertEqual(steps[-1]["train_seconds"], summary["train_seconds"])
        self.assertAlmostEqual(sum(step["ms"] for step in steps) / 1e3 / summary["train_seconds"], 1, delta=1e-9)
        for step in steps:
            self.assertAlmostEqual(step["tokens_per_second"] * step["ms"] / 1e3, 4 * 256, delta=1e-6)
            self.assertEqual(step["tokens"], step["step"] * 4 * 256)
            self.assertTrue(0 < step["gradient_norm"] < math.inf)
        self.assertEqual((steps[0]["lr"], steps[0]["window"], steps[-1]["window"]), (1, 128, 256))

        self.assertEqual([validation["step"] for validation in validations], [0, 6, 12])
        self.assertEqual(validations[-1]["validation_loss"], summary["final_val_loss"])
        self.assertNotIn("step_ms", validations[0])
        self.assertEqual([validation["tokens"] for validation in validations], [0, 6 * 4 * 256, summary["tokens"]])
        shown = re.findall(r"^validation at step (\d+)/12: loss (\S+)  train time (\S+) s(?:  (\S+) ms/step)?$",
                           "".join(job.output), re.MULTILINE)
        for (step, loss, seconds, mean), validation in zip(shown, validations, strict=True):
            self.assertEqual((int(step), float(loss)), (validation["step"], round(validation["validation_loss"], 5)))
            self.assertAlmostEqual(float(seconds), validation["train_seconds"], delta=0.051)
            if validation["step"] > 0:
                self.assertEqual(validation["train_seconds"], steps[validation["step"] - 1]["train_seconds"])
                self.assertAlmostEqual(validation["step_ms"] * validation["step"] / 1e3 / validation["train_seconds"], 1)
                self.assertAlmostEqual(float(mean), validation["step_ms"], delta=0.051)

    def test_gradient_norm_does_not_depend_on_the_ranks(self):
        norms = {}
        for ranks in (1, 2, 4):
            self.train(ranks, f"run.name=ranks{ranks}", "train.steps=4")
            path = self.folder / "outputs" / f"ranks{ranks}" / "metrics.jsonl"
            lines = map(json.loads, path.read_text().splitlines())
            norms[ranks] = [line["gradient_norm"] for line in lines if "loss" in line]
        for ranks in (2, 4):
            for norm, expected in zip(norms[ranks], norms[1], strict=True):
                self.assertAlmostEqual(norm / expected, 1, delta=1e-3)

    def test_kill_and_restart(self):
        arguments = ("train.steps=40", "checkpoint.every=5", "validation.every=5", "run.log_every=3")
        whole = self.folder / "whole"
        self.prepare(whole)
        self.train(2, *arguments, folder=whole)
        expected, expected_validations = self.metrics(whole)
        for step in (9, 18, 27):
            job = self.start(2, *arguments)
            job.until_step(step)
            job.kill()
        steps, _ = self.metrics()
        self.assertGreaterEqual(len(steps), 25)
        last = self.train(2, *arguments)
        self.assertGreaterEqual(restarted_from(last), 25)
        self.assertNotIn("metrics.jsonl", last.text())
        steps, validations = self.metrics()
        self.assert_same(steps, expected)
        self.assertEqual([(line["step"], line["validation_loss"]) for line in validations],
                         [(line["step"], line["validation_loss"]) for line in expected_validations])
        self.assertEqual([step["train_seconds"] for step in steps], sorted(step["train_seconds"] for step in steps))

    def test_stop_and_restart_elsewhere(self):
        """A run that goes on from the checkpoint of another has its own lines alone."""
        self.train(2, "stop.step=5", code=75)
        self.assertEqual([step["step"] for step in self.metrics()[0]], [1, 2, 3, 4, 5])
        kept = self.path().read_bytes()
        checkpoint = self.checkpoint(5)
        self.train(1, "run.name=second", f"checkpoint.restart={checkpoint}")
        self.assertEqual(self.path().read_bytes(), kept)
        second = self.folder / "outputs" / "second" / "metrics.jsonl"
        self.assertEqual(json.loads(second.read_text().splitlines()[0])["step"], 6)

    def test_damaged_file_is_set_aside(self):
        self.train(2, "stop.step=5", code=75)
        damaged = b"\0" * 100 + self.path().read_bytes()
        self.path().write_bytes(damaged)
        job = self.train(2)
        self.assert_refused(job, "warning", "outputs/run/metrics.jsonl: line 1 ", "kept as outputs/run/metrics.jsonl.1")
        self.assertEqual((self.run_folder() / "metrics.jsonl.1").read_bytes(), damaged)
        self.assertEqual([step["step"] for step in self.metrics()[0]], [6, 7, 8, 9, 10, 11, 12])

    def test_copy_by_hard_links_keeps_its_lines(self):
        self.train(2, "stop.step=5", code=75)
        copy = self.folder / "outputs" / "copy"
        shutil.copytree(self.run_folder(), copy, copy_function=os.link)
        kept = self.path().read_bytes()
        self.train(2)
        self.assertEqual((copy / "metrics.jsonl").read_bytes(), kept)
        self.assertEqual(len(self.metrics()[0]), 12)

    def test_removed_file_is_written_again(self):
        job = self.start(2, "train.steps=100000")
        job.until_step(3)
        self.path().unlink()
        job.until(lambda: any("metrics.jsonl: was removed during the run" in line for line in job.errors), "warning")
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        made = self.summary()["steps"]
        self.assertEqual([step["step"] for step in self.metrics()[0]], list(range(1, made + 1)))

    def test_provenance(self):
        """The summary, the head of the log, checkpoint, trace and nanorun info name the program of --version."""
        os.environ["SLURM_JOB_ID"] = "4711"
        self.addCleanup(os.environ.pop, "SLURM_JOB_ID")
        self.train(2, "train.steps=1", 'run.name="a b"')
        folder = self.folder / "outputs" / "a b"
        provenance = json.loads((folder / "summary.json").read_text())["provenance"]
        name, command, started, libraries, flags = (folder / "log.txt").read_text().splitlines()[:5]

        said = {}
        for arguments in ("--version", "--version --verbose", "info"):
            job = Job(self.folder, 2, arguments.split())
            self.assertEqual(job.wait(), 0, job.text())
            said[arguments] = "".join(job.output)
        self.assertEqual(said["--version"].strip(), name)
        self.assertEqual(said["--version --verbose"], said["info"])
        self.assertTrue(name.startswith(f"nanorun {provenance['version']} ("))
        self.assertIn(provenance["compiler"], name)
        self.assertEqual(re.search(r"\((?:(\S+), )?\w+ [\d.]+, ", name)[1], provenance.get("commit"))

        facts = dict(line.split(maxsplit=1) for line in said["info"].splitlines())
        self.assertLessEqual(len(facts), 13)
        for key in ("version", "compiler", "flags", "mpi", "hdf5", "kokkos", "blas"):
            self.assertEqual(facts[key], provenance[key])
        for key in ("mpi", "hdf5", "kokkos", "blas"):
            self.assertIn(provenance[key], libraries)
        self.assertEqual(flags, f"flags {provenance['flags']}")
        self.assertEqual(list(provenance["hosts"].values()), [2])
        self.assertEqual(list(provenance["devices"].values()), [2])
        self.assertEqual(provenance["job"], "4711")
        self.assertEqual(provenance["command"], f"{small_run.PROGRAM} train deck.toml train.steps=1 'run.name=\"a b\"'")
        self.assertEqual(command, provenance["command"])
        self.assertIsNotNone(datetime.fromisoformat(provenance["started"]).tzinfo)
        host, = provenance["hosts"]
        self.assertEqual(started, f"started {provenance['started']} on {host} (2 ranks), job 4711")
        self.assert_attributes(folder, provenance)

    def assert_attributes(self, folder, provenance):
        try:
            import h5py
        except ImportError:
            return
        for path in (folder / "trace.h5", folder / "checkpoints" / "checkpoint_00000001.h5"):
            with h5py.File(path) as file:
                values = {key: file.attrs[key] for key in ("version", "commit", "provenance")}
                values = {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}
                self.assertEqual(json.loads(values.pop("provenance")), provenance)
                for key, value in values.items():
                    self.assertEqual(value, provenance.get(key, ""))


if __name__ == "__main__":
    small_run.main()
