"""Many ranks on few processors, and their trace."""

import os
from unittest import mock

import harness
from harness import FaultTest, restarted_from, small_run

# 64 sequences of 128 tokens.
SMALL = ("model.layers=2", "window.last=128", "train.sequences=64", "train.length=128", "validation.tokens=0",
         "trace.flush_every=2")


class Ranks(FaultTest):
    def setUp(self):
        super().setUp()
        try:
            import h5py  # noqa: F401
        except ImportError:
            self.skipTest("needs h5py")
        for change in (mock.patch.dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1"),
                       mock.patch.object(harness, "TIMEOUT", 900)):
            change.start()
            self.addCleanup(change.stop)

    def trained(self, ranks, steps, *overrides):
        """Trains up to so many steps in all; returns the job, which had nothing to complain about."""
        last = steps == 6
        job = self.train(ranks, *SMALL, "train.steps=6", *overrides, *([] if last else [f"stop.step={steps}"]),
                         code=0 if last else 75)
        self.assertEqual(job.messages(), [])
        return job

    def assert_traced(self, ranks):
        """The ranks of each step, and times of all of them."""
        import h5py

        with h5py.File(self.run_folder() / "trace.h5") as trace:
            self.assertEqual(list(trace["step"]), list(range(len(ranks))))
            self.assertEqual(list(trace["ranks"]), ranks)
            for row, count in enumerate(ranks):
                each = trace["seconds"][row].sum(axis=1)
                self.assertTrue((each[:count] > 0).all() and not each[count:].any(), each)

    def test_sixty_four_ranks_restart_on_eight(self):
        for ranks, steps in ((64, 2), (8, 4), (64, 6)):
            job = self.trained(ranks, steps)
            self.assertEqual(restarted_from(job), steps - 2 or None)
        self.assert_traced([64, 64, 8, 8, 64, 64])

    def test_forty_eight_ranks(self):
        """From 48 ranks on a trace without rows is smaller than one row."""
        self.trained(48, 2, "train.sequences=48")
        self.assert_traced([48, 48])


if __name__ == "__main__":
    small_run.main()
