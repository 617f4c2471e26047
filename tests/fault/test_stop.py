"""Early stops: by signal, walltime, stop file, a loss that is not finite, a rank that dies or hangs."""

import os
import re
import signal

import harness
from harness import FaultTest, restarted_from


class Stop(FaultTest):
    long_run = ("train.steps=100000", "run.log_every=1")

    def assert_stopped(self, job, reason):
        """The job ended in order, with a checkpoint of the step at which it says that it stopped."""
        self.assertEqual(job.wait(), 75, job.text())
        stopped = re.findall(r"stopped at step (\d+): (.*);", "".join(job.output))
        self.assertEqual(len(stopped), 1, job.text())
        step = int(stopped[0][0])
        self.assertEqual(stopped[0][1], reason)
        self.assertEqual(self.files(), [self.checkpoint(step).name])
        self.assertEqual(self.summary()["steps"], step)
        self.assertFalse(self.summary()["finished"])
        again = self.train(2, *self.long_run, f"stop.step={step + 1}", code=75)
        self.assertEqual(restarted_from(again), step)

    def stop_by_signal(self, number, reason):
        job = self.start(2, *self.long_run)
        job.until_step(3)
        os.kill(job.rank_pids()[1], number)
        self.assert_stopped(job, reason)

    def test_sigterm_to_one_rank(self):
        self.stop_by_signal(signal.SIGTERM, "SIGTERM received")

    def test_sigusr2_to_one_rank(self):
        self.stop_by_signal(signal.SIGUSR2, "SIGUSR2 received")

    def test_walltime(self):
        self.assert_stopped(self.start(2, *self.long_run, "stop.walltime_seconds=2"), "walltime limit reached")

    def test_stop_file(self):
        job = self.start(2, *self.long_run)
        job.until_step(3)
        (self.run_folder() / "stop").touch()
        self.assert_stopped(job, "stop file found")

    def test_loss_not_finite(self):
        self.train(2, "stop.step=4", code=75)
        job = self.train(2, "optimizer.lr_embedding=1e300", "checkpoint.every=4", code=5)
        self.assertEqual(restarted_from(job), 4)
        self.assert_refused(job, "the loss is", "at step 6", self.checkpoint(4).name)
        self.assertEqual(self.files(), [self.checkpoint(4).name])
        self.verify(self.checkpoint(4))
        self.assertEqual(restarted_from(self.train(2)), 4)

    def test_killed_rank_ends_the_job(self):
        job = self.start(2, *self.long_run, "checkpoint.every=2")
        job.until_step(5)
        victim = job.rank_pids()[1]
        os.kill(victim, signal.SIGKILL)
        self.assertNotEqual(job.wait(), 0)
        self.assertRegex("".join(job.errors), r"rank 1 .*signal 9|rank 1: .*did not complete")
        self.verify(*(self.run_folder() / "checkpoints").glob("*.h5"))

    def test_hanging_rank_ends_the_job(self):
        job = self.start(2, *self.long_run, "comm.timeout_seconds=3")
        job.until_step(3)
        os.kill(job.rank_pids()[1], signal.SIGSTOP)
        self.assertEqual(job.wait(), 6, job.text())
        self.assertRegex("".join(job.errors), r"nanorun: rank 0: \w+ at step \d+ did not complete within 3 s")


if __name__ == "__main__":
    harness.main()
