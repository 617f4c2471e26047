"""Disks that fill up, output folders that cannot be written, and folders that two jobs want."""

import json
import os
import re
import signal
import socket
import subprocess

import harness
from harness import FaultTest, Job, restarted_from, small_run


class Disk(FaultTest):
    # Checkpoints of some 2 MB.
    model = ("model.vocabulary=2000", "checkpoint.every=3", "checkpoint.keep=1")
    long_run = (*model, "train.steps=100000")
    slow = (*model, "train.steps=80", "checkpoint.every=20")

    def mount(self, *options):
        """Mounts a file system in memory as the folder of outputs; None where that is not allowed."""
        folder = self.folder / "outputs"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", *options, "none", folder]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            return None
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        return folder

    def fill(self, left):
        """Leaves so many bytes of the disk; returns the file that takes the rest."""
        disk = self.folder / "outputs"
        filler = disk / "filler"
        status = os.statvfs(disk)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(status.f_bavail * status.f_frsize - left, 1))
        return filler

    def no_space(self, *overrides, code):
        """A run whose disk has too little space for the checkpoints after the first; returns it and the filler."""
        if not self.mount("-o", "size=8m"):
            self.skipTest("needs the right to mount")
        job = self.start(2, *self.slow, *overrides)
        job.until(lambda: self.checkpoint(20).exists(), "checkpoint")
        filler = self.fill(1 << 20)
        self.assertEqual(job.wait(), code, job.text())
        return job, filler

    def assert_continues(self, filler):
        """The checkpoint of step 20 is sound, the run goes on from there, and nothing half-written stays."""
        self.assertEqual(self.files(), ["checkpoint_00000020.h5"])
        self.verify(self.checkpoint(20))
        filler.unlink()
        job = self.train(2, *self.slow)
        self.assertEqual(restarted_from(job), 20)
        self.assertEqual(self.files(), ["checkpoint_00000080.h5"])
        self.assertEqual(list(self.run_folder().rglob("*.partial")), [])

    def test_full_disk_stops_the_run(self):
        job, filler = self.no_space(code=4)
        self.assert_refused(job, "checkpoint_00000040.h5.partial", "no space for the file")
        self.assert_continues(filler)

    def test_run_without_space_for_a_checkpoint_is_no_obstacle(self):
        """Another deck may then fit; the figures of the first stay."""
        if not self.mount("-o", "size=8m"):
            self.skipTest("needs the right to mount")
        job = self.start(2, *self.slow)
        job.until_step(2)
        filler = self.fill(1 << 20)
        self.assertEqual(job.wait(), 4, job.text())
        self.assert_refused(job, "checkpoint_00000020.h5.partial", "no space for the file")
        filler.unlink()
        summary = (self.run_folder() / "summary.json").read_bytes()
        again = self.train(2, *self.slow, "train.steps=4", "model.vocabulary=1000")
        self.assertEqual(sorted(harness.losses(again)), [1, 2, 3, 4])
        self.assertIn("is kept as outputs/run.1", again.text())
        self.assertEqual((self.folder / "outputs/run.1/summary.json").read_bytes(), summary)

    def test_full_disk_at_the_last_checkpoint_stops_the_run_always(self):
        job, filler = self.no_space("checkpoint.on_failure=continue", code=4)
        self.assertEqual([re.search(r"checkpoint_\d+.h5", line)[0] for line in job.messages()],
                         [f"checkpoint_{step:08}.h5" for step in (40, 60, 80)])
        for line in job.messages()[:2]:
            self.assertRegex(line, "^nanorun: warning: .*no space for the file.*; training goes on$")
        self.assert_continues(filler)

    def test_too_little_space_is_found_before_training(self):
        if not self.mount("-o", "size=8m"):
            self.skipTest("needs the right to mount")
        filler = self.fill(3 << 20)  # a checkpoint fits, two do not
        job = self.train(2, *self.slow, code=4)
        self.assert_refused(job, "outputs/run/checkpoints: checkpoints will need", "checkpoint.keep")
        self.assertEqual(harness.losses(job), {})
        filler.unlink()
        self.train(2, *self.slow, "train.steps=2")

    def test_file_size_limit_is_found_before_training(self):
        wrapper = ["sh", "-c", "ulimit -f 16384; exec \"$@\"", "sh"]  # 8 MiB
        job = self.train(2, *self.slow, "model.vocabulary=20000", wrapper=wrapper, code=4)
        self.assert_refused(job, "outputs/run/checkpoints: a checkpoint needs", "ulimit -f")
        self.assertEqual(harness.losses(job), {})

    def test_trial_checkpoint_that_fails_stops_the_run_always(self):
        if not self.mount("-o", "size=8m"):
            self.skipTest("needs the right to mount")
        (self.run_folder() / "checkpoints").mkdir(parents=True)
        self.fill(16 << 10)
        job = self.train(2, *self.slow, "checkpoint.on_failure=continue", code=4)
        self.assertEqual(harness.losses(job), {})
        self.assertRegex(job.messages()[-1], "checkpoint_00000080.h5.partial: no space for the file")
        keys = Job(self.folder, None, ["keys"])
        self.assertEqual(keys.wait(), 0)
        self.assertRegex("".join(keys.output), "`on_failure` .* the trial one before the first step .* always stop it")

    def test_checkpoints_resume_when_the_disk_has_space(self):
        if not self.mount("-o", "size=8m"):
            self.skipTest("needs the right to mount")
        job = self.start(2, *self.long_run, "checkpoint.on_failure=continue")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        filler = self.fill(1 << 20)
        job.until(lambda: any("; training goes on" in line for line in job.errors), "warning")
        before = self.files()
        filler.unlink()
        job.until(lambda: self.files() != before and not self.files()[0].endswith(".partial"), "another checkpoint")
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        self.verify(*(self.run_folder() / "checkpoints").iterdir())

    def test_full_disk_ends_trace_and_metrics_but_not_the_run(self):
        if not self.mount("-o", "size=8m"):
            self.skipTest("needs the right to mount")
        job = self.start(2, "model.vocabulary=2000", "train.steps=100000", "trace.flush_every=1")
        job.until_step(3)
        filler = self.fill(0)
        for file in ("trace.h5", "metrics.jsonl"):
            job.until(lambda: any(file in line for line in job.errors), f"warning of {file}")
        filler.unlink()
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        messages = sorted(line for line in job.messages() if "log.txt" not in line)
        self.assertEqual(len(messages), 2, messages)
        self.assertRegex(messages[0], "^nanorun: warning: .*metrics.jsonl: .*; the metrics stop here$")
        self.assertRegex(messages[1], "^nanorun: warning: .*trace.h5: no space for the file.*; tracing stops here$")
        self.assertEqual(len(self.files()), 1)
        self.verify(self.checkpoint(self.summary()["steps"]))
        made = self.summary()["steps"]
        metrics = (self.run_folder() / "metrics.jsonl").read_text().splitlines()
        kept = json.loads(metrics[-1])["step"] if metrics else 0
        again = self.train(2, "model.vocabulary=2000", "train.steps=100000", f"stop.step={made + 1}", code=75)
        # Trace and metrics are readable too.
        messages = sorted(again.messages())
        self.assertEqual(len(messages), 2, messages)
        self.assertIn(f"warning: outputs/run/metrics.jsonl: lacks steps {kept + 1} to {made}, which", messages[0])
        self.assertRegex(messages[1], rf"^nanorun: warning: outputs/run/trace.h5: lacks steps (\d+ to )?{made}, which")
        self.assertEqual(list(self.run_folder().rglob("*.partial")), [])

    def assert_output_refused(self, *parts, overrides=(), code=7):
        """Refused before training."""
        job = self.train(2, *overrides, code=code)
        self.assert_refused(job, *parts)
        self.assertEqual(harness.losses(job), {})

    def test_output_below_a_file(self):
        (self.folder / "blocked").touch()
        self.assert_output_refused("blocked/run", "Not a directory", overrides=["run.outputs=blocked"])

    def test_output_folder_is_a_file(self):
        self.run_folder().parent.mkdir()
        self.run_folder().touch()
        self.assert_output_refused("outputs/run", "Not a directory")

    def test_checkpoint_folder_is_a_file(self):
        self.run_folder().mkdir(parents=True)
        (self.run_folder() / "checkpoints").touch()
        self.assert_output_refused("outputs/run/checkpoints", "move it away", code=4)

    def test_read_only_file_system(self):
        if not self.mount("-o", "ro"):
            self.skipTest("needs the right to mount")
        self.assert_output_refused("outputs/run", "Read-only file system")

    def test_output_folder_becomes_a_file(self):
        job = self.start(2, *self.long_run)
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        kept = self.folder / "outputs" / "kept"
        self.run_folder().rename(kept)
        self.run_folder().touch()
        self.assertEqual(job.wait(), 7, job.text())
        self.assertRegex(job.text(), "the checkpoint of step .* is saved in outputs/run.1")
        self.run_folder().unlink()
        kept.rename(self.run_folder())
        job = self.train(2, *self.model, "train.steps=100000", "stop.walltime_seconds=0.1", code=75)
        self.assertIsNotNone(restarted_from(job))

    def test_another_run_takes_the_folder(self):
        """Its files stay as they are; the run that was displaced saves its work beside them."""
        job = self.start(None, *self.model, "train.steps=100000", "trace.flush_every=1")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        os.kill(job.process.pid, signal.SIGSTOP)
        self.run_folder().rename(self.folder / "outputs" / "moved")
        self.train(None, *self.model, "train.steps=2")

        def contents():
            return {path: path.read_bytes() for path in self.run_folder().rglob("*") if path.is_file()}

        before = contents()
        for pid_signal in (signal.SIGTERM, signal.SIGCONT):
            os.kill(job.process.pid, pid_signal)
        self.assertEqual(job.wait(), 7, job.text())
        self.assertEqual(contents(), before)
        beside = self.folder / "outputs" / "run.1"
        step = json.loads((beside / "summary.json").read_text())["steps"]
        self.assertIn("nanorun: outputs/run was moved away during the run, and something else lies there now: the "
                      f"checkpoint of step {step} is saved in outputs/run.1; continue it with run.name=run.1", job.messages())
        again = self.train(None, *self.model, "train.steps=100000", "run.name=run.1", f"stop.step={step + 1}", code=75)
        self.assertEqual(restarted_from(again), step)

    def test_heartbeats_that_cannot_be_written_leave_nothing(self):
        name = "outputs/run/heartbeats/0"
        for path, injection in ((self.folder / name, "write:error=ENOSPC"),
                                ((self.folder / name).parent, "openat:error=EACCES")):
            wrapper = self.injecting(path, injection)
            self.assert_refused(self.train(None, wrapper=wrapper, code=7), name)
            self.assertFalse((self.run_folder() / "heartbeats").exists())

    def test_two_jobs_on_one_folder(self):
        job = self.start(2, *self.long_run)
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        ranks = job.rank_pids()
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)  # it holds the folder, and leaves the cores to the others
        holder = f"outputs/run is in use by process {ranks[0]} on node {socket.gethostname()}"
        others = [self.start(2, *self.model, f"checkpoint.restart={restart}") for restart in ("auto", "none")]
        for other in others:  # each waits some seconds for the folder
            self.assertEqual(other.wait(), 7, other.text())
            self.assert_refused(other, holder)
            self.assertEqual(harness.losses(other), {})
        self.assertEqual([path.name for path in self.run_folder().parent.iterdir()], ["run"])
        job.kill()
        again = self.train(2, *self.long_run, "stop.walltime_seconds=0.1", code=75)
        self.assertIsNotNone(restarted_from(again))  # the lock of the dead job holds nobody up


if __name__ == "__main__":
    small_run.main()
