"""Too little address space for the libraries, which would hang without it."""

import os

from harness import FaultTest, Job, losses, small_run


class Limits(FaultTest):
    def job(self, limit, arguments, threads=1):
        """The program with so many MiB of address space."""
        wrapper = ["env", f"OPENBLAS_NUM_THREADS={threads}", "sh", "-c", f'ulimit -v {limit * 1024}; exec "$@"', "sh"]
        return Job(self.folder, None, arguments, wrapper)

    def test_too_little_to_start(self):
        for arguments in (["--version"], ["train", "deck.toml"]):
            job = self.job(300, arguments)
            self.assertEqual(job.wait(), 1, job.text())
            self.assert_refused(job, "limit on address space (ulimit -v) is 300 MiB", "need 512 MiB")

    def test_too_little_for_threads_at_start(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs two cores")
        job = self.job(600, ["train", "deck.toml"], threads=2)
        self.assertEqual(job.wait(), 1, job.text())
        self.assert_refused(job, "its 2 BLAS threads need 656 MiB", "OPENBLAS_NUM_THREADS=1")

    def test_too_little_to_train(self):
        """The run ends in order between what suffices to start and what suffices to train."""
        seen = set()
        for limit in range(520, 1200, 40):
            job = self.job(limit, ["train", "deck.toml", "train.steps=1", "checkpoint.restart=none"])
            seen.add(job.wait())
            self.assertIn(job.process.returncode, (0, 1), job.text())
            if job.process.returncode == 0:
                break
            self.assertRegex(job.messages()[-1], "no room for OpenBLAS's buffers: raise .*ulimit -v|out of memory")
            self.assertEqual(losses(job), {})
        self.assertEqual(seen, {0, 1})


if __name__ == "__main__":
    small_run.main()
