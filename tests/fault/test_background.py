"""Checkpoints that are written while training goes on."""

import os
import re
import signal

from harness import FaultTest, losses, restarted_from, small_run

MODEL = ("model.vocabulary=2000", "checkpoint.background=true")  # checkpoints of some 2 MB
SLOW = ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", "FAULT_BYTES_PER_SECOND=2e6"]


class Background(FaultTest):
    def partial(self, step):
        return self.checkpoint(step).with_name(self.checkpoint(step).name + ".partial")

    def start_slow(self, ranks, *overrides):
        """A job that writes the checkpoint of step 4 and has made further steps."""
        job = self.start(ranks, *MODEL, "train.steps=100000", *overrides, wrapper=SLOW)
        job.until(self.partial(4).exists, "checkpoint under way")
        job.until_step(6)
        self.assertNotIn("checkpoint_00000004", job.text())
        return job

    def test_training_goes_on_with_the_same_losses(self):
        waited = self.train(2, *MODEL, "train.steps=12", "checkpoint.every=4", "checkpoint.background=false",
                            "run.name=waited")
        job = self.train(2, *MODEL, "train.steps=12", "checkpoint.every=4", "checkpoint.keep=3")
        self.assertEqual(losses(job), losses(waited))
        self.assertEqual(re.findall(r"^checkpoint .*(checkpoint_.*)$", "".join(job.output), re.M), self.files())
        self.assertEqual(len(self.files()), 3)
        self.verify(*map(self.checkpoint, (4, 8, 12)))
        self.checkpoint(12).unlink()
        again = self.train(1, *MODEL, "train.steps=12", "checkpoint.every=4")
        self.assertEqual(restarted_from(again), 8)
        for step, loss in losses(again).items():
            self.assertAlmostEqual(loss, losses(waited)[step], places=4)

    def test_killed_while_it_is_written(self):
        """The run continues from the checkpoint before, and nothing half-written stays."""
        self.train(2, *MODEL, "train.steps=100000", "stop.step=2", code=75)
        job = self.start_slow(2, "checkpoint.every=4")
        job.kill()
        self.assertEqual(self.files(), [self.checkpoint(2).name, self.partial(4).name])
        again = self.train(2, *MODEL, "train.steps=100000", "stop.step=3", code=75)
        self.assertEqual(restarted_from(again), 2)
        self.assertEqual(self.files(), [self.checkpoint(2).name, self.checkpoint(3).name])

    def test_stop_waits_for_it(self):
        job = self.start_slow(2, "checkpoint.every=4")
        os.kill(job.rank_pids()[0], signal.SIGTERM)
        self.assertEqual(job.wait(), 75, job.text())
        files = self.files()
        self.assertEqual((len(files), files[0]), (2, self.checkpoint(4).name))
        for step in (4, int(files[1][11:19])):
            self.verify(self.checkpoint(step))

    def test_next_one_waits_for_it(self):
        job = self.start(None, *MODEL, "train.steps=3", "checkpoint.every=1", "checkpoint.keep=3", wrapper=SLOW)
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(self.files(), [self.checkpoint(step).name for step in (1, 2, 3)])
        self.verify(*map(self.checkpoint, (1, 2, 3)))

    def test_write_that_fails(self):
        """The run stops, or goes on if the deck says so."""
        failing = self.injecting(self.partial(4), "fsync:error=ENOSPC:when=1")
        job = self.train(None, *MODEL, "train.steps=40", "checkpoint.every=4", wrapper=failing, code=4)
        self.assert_refused(job, self.partial(4).name, "No space left on device")
        self.assertEqual(self.files(), [])
        job = self.train(None, *MODEL, "train.steps=12", "checkpoint.every=4", "checkpoint.on_failure=continue",
                         wrapper=failing)
        self.assert_refused(job, "warning", self.partial(4).name, "training goes on")
        self.assertEqual(self.files(), [self.checkpoint(8).name, self.checkpoint(12).name])

    def test_directory_that_is_moved_away_meanwhile(self):
        """The run saves the step at which it notices."""
        job = self.start_slow(None, "checkpoint.every=4", "stop.step=12")
        self.run_folder().rename(self.folder / "outputs" / "moved")
        self.assertEqual(job.wait(), 75, job.text())
        self.assertIn(self.checkpoint(12).name, self.files())
        self.verify(*(self.run_folder() / "checkpoints" / name for name in self.files()))
        self.assertNotIn(self.checkpoint(4).name, self.files())


if __name__ == "__main__":
    small_run.main()
