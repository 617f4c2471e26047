"""The run's directory, or a part of it, is moved, removed or taken while the run goes on."""

import json
import os
import shutil
import signal

from harness import FaultTest, losses, restarted_from, small_run


class Moved(FaultTest):
    def content(self):
        """Every file of the run but the lock, into which a run that has locked it only for a moment writes its name."""
        return {path: path.read_bytes() for path in self.run_folder().rglob("*") if path.is_file() and path.name != "lock"}

    def start_and_wait_in_a_write(self, seconds, *overrides):
        """A job whose checkpoint of step 4 takes so long; returns before it is flushed."""
        partial = self.run_folder() / "checkpoints" / "checkpoint_00000004.h5.partial"
        wrapper = self.injecting(partial, f"fsync:delay_enter={seconds * 1000000}:when=1")
        job = self.start(None, "train.steps=100000", "checkpoint.every=4", *overrides, wrapper=wrapper)
        calls = self.folder / "strace"
        job.until(lambda: calls.exists() and "fsync(" in calls.read_text(), "checkpoint under way")
        return job

    def assert_saved_again(self, moved):
        """A directory that is moved away while a checkpoint is written there costs no step."""
        job = self.start_and_wait_in_a_write(1, "stop.step=4")
        moved.rename(self.folder / "kept")
        self.assertEqual(job.wait(), 75, job.text())
        self.assertEqual(self.files(), [self.checkpoint(4).name])
        self.verify(self.checkpoint(4))
        self.assertEqual(restarted_from(self.train(None, "stop.step=5", code=75)), 4)

    def test_run_moved_while_a_checkpoint_is_written(self):
        self.assert_saved_again(self.run_folder())

    def test_checkpoints_moved_while_one_is_written(self):
        self.assert_saved_again(self.run_folder() / "checkpoints")

    def test_outputs_moved_while_a_checkpoint_is_written(self):
        self.assert_saved_again(self.run_folder().parent)

    def assert_saved_beside(self, job):
        """The job ends, and its last checkpoint continues under another name."""
        self.assertEqual(job.wait(), 7, job.text())
        step = json.loads((self.folder / "outputs" / "run.1" / "summary.json").read_text())["steps"]
        self.assertIn("nanorun: outputs/run was moved away during the run, and something else lies there now: the "
                      f"checkpoint of step {step} is saved in outputs/run.1; continue it with run.name=run.1",
                      job.messages())
        again = self.train(None, "train.steps=100000", "run.name=run.1", f"stop.step={step + 1}", code=75)
        self.assertEqual(restarted_from(again), step)

    def test_another_run_takes_the_folder_while_a_checkpoint_is_written(self):
        job = self.start_and_wait_in_a_write(8)
        self.run_folder().rename(self.folder / "outputs" / "moved")
        self.train(None, "train.steps=2")
        before = self.content()
        self.assert_saved_beside(job)
        self.assertEqual(self.content(), before)

    def test_another_run_takes_the_folder_while_it_is_made_again(self):
        """It has ended when the run locks the folder."""
        job = self.start(None, "train.steps=100000", "validation.tokens=0",
                         wrapper=self.injecting("outputs/run", "mkdir,mkdirat:signal=SIGSTOP:when=2"))
        job.until_step(3)
        self.run_folder().rename(self.folder / "outputs" / "moved")
        program = self.stopped_at(job)
        self.train(None, "train.steps=2")
        before = self.content()
        os.kill(program, signal.SIGCONT)
        self.assert_saved_beside(job)
        self.assertEqual(self.content(), before)

    def test_new_name_that_leaves_no_room_for_another(self):
        """The message says to shorten it."""
        name = "l" * (240 - len("outputs//checkpoints/checkpoint_00100000.h5.partial") - 4)
        folder = self.folder / "outputs" / name
        job = self.start(None, "train.steps=100000", "validation.tokens=0", f"run.name={name}")
        job.until_step(3)
        folder.rename(self.folder / "outputs" / "moved")
        folder.touch()
        self.assertEqual(job.wait(), 7, job.text())
        self.assertIn(f"is saved in outputs/{name}.1; rename this directory to a shorter name, and continue it with the name "
                      "as run.name", job.messages()[-1])
        self.train(None, f"run.name={name}.1", code=4)
        (self.folder / "outputs" / f"{name}.1").rename(self.folder / "outputs" / "short")
        again = self.train(None, "train.steps=100000", "validation.tokens=0", "run.name=short", "stop.walltime_seconds=0.1",
                           code=75)
        self.assertIsNotNone(restarted_from(again))

    def test_a_file_takes_the_place_of_the_folder(self):
        job = self.start(None, "train.steps=100000")
        job.until_step(3)
        self.run_folder().rename(self.folder / "outputs" / "moved")
        self.run_folder().write_text("precious")
        self.assert_saved_beside(job)
        self.assertEqual(self.run_folder().read_text(), "precious")

    def test_lock_is_removed(self):
        job = self.start(None, "train.steps=100000")
        job.until_step(3)
        (self.run_folder() / "lock").unlink()
        job.until(lambda: job.errors, "warning")
        self.assert_refused(self.train(None, code=7), "in use by")
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75, job.text())
        self.assertEqual(job.messages(),
                         ["nanorun: warning: outputs/run/lock: was removed while the run goes on; made again"])

    def test_refused_command_takes_no_folder_whose_lock_was_removed(self):
        job = self.start(None, "train.steps=100000", "checkpoint.every=2")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        os.kill(job.process.pid, signal.SIGSTOP)
        (self.run_folder() / "lock").unlink()
        self.assertEqual(losses(self.train(None, "train.steps=1", code=2)), {})
        (self.run_folder() / "stop").touch()
        os.kill(job.process.pid, signal.SIGCONT)
        self.assertEqual(job.wait(), 75, job.text())

    def test_run_that_took_a_folder_whose_lock_was_removed_keeps_it(self):
        job = self.start(None, "train.steps=100000", "checkpoint.every=2")
        job.until(lambda: any(self.run_folder().glob("checkpoints/*.h5")), "checkpoint")
        os.kill(job.process.pid, signal.SIGSTOP)
        (self.run_folder() / "lock").unlink()
        self.train(None, "train.steps=100000", "stop.walltime_seconds=0.1", code=75)
        before = self.files()
        os.kill(job.process.pid, signal.SIGCONT)
        self.assert_saved_beside(job)
        self.assertEqual(self.files(), before)


if __name__ == "__main__":
    small_run.main()
