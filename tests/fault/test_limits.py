"""Limits on the address space, without which the libraries would hang, and on the size of files."""

import os
import re

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
            self.assert_refused(job, "limit on address space (ulimit -v) is 300 MiB", "need 768 MiB to train a small "
                                "model, and 512 MiB to start")

    def test_too_little_for_threads_at_start(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs two cores")
        job = self.job(600, ["train", "deck.toml"], threads=2)
        self.assertEqual(job.wait(), 1, job.text())
        self.assert_refused(job, "its 2 BLAS threads need 912 MiB", "OPENBLAS_NUM_THREADS=1")

    def test_suggested_limit_suffices(self):
        for threads in range(1, min(len(os.sched_getaffinity(0)), 2) + 1):
            refused = self.job(300, ["train", "deck.toml"], threads)
            self.assertEqual(refused.wait(), 1, refused.text())
            suggested = int(re.search(r"need (\d+) MiB", refused.messages()[0])[1])
            job = self.job(suggested, ["train", "deck.toml", "train.steps=1", "checkpoint.restart=none"], threads)
            self.assertEqual(job.wait(), 0, job.text())

    def test_too_few_open_files(self):
        for ranks in (None, 2):
            job = Job(self.folder, ranks, ["--version"], ["sh", "-c", 'ulimit -n 20; exec "$@"', "sh"])
            self.assertEqual(job.wait(), 1, job.text())
            self.assertEqual(set(job.messages()), {"nanorun: the limit on open files (ulimit -n) is 20, but MPI needs 64 to "
                                                   "start: raise the limit"})

    def test_soft_limit_on_open_files_is_raised(self):
        job = Job(self.folder, None, ["train", "deck.toml"], ["sh", "-c", 'ulimit -S -n 20; exec "$@"', "sh"])
        self.assertEqual(job.wait(), 0, job.text())

    def test_file_size_too_small_for_mpi(self):
        for ranks in (None, 2):
            wrapper = ["sh", "-c", 'ulimit -f 8192; exec "$@"', "sh"]  # 4 MiB
            job = Job(self.folder, ranks, ["--version"], wrapper)
            self.assertEqual(job.wait(), 1, job.text())
            self.assertEqual(set(job.messages()), {"nanorun: the file size limit (ulimit -f) is below 8 MiB, which MPI needs "
                                                   "to start: raise the limit"})

    def test_file_size_too_small_for_a_shard(self):
        (self.folder / "big.txt").write_bytes(b" " * (10 << 20))
        wrapper = ["sh", "-c", 'ulimit -f 16384; exec "$@"', "sh"]  # 8 MiB
        job = Job(self.folder, None, ["shard", "big", "big.txt", "--text"], wrapper)
        self.assertEqual(job.wait(), 7, job.text())
        self.assert_refused(job, "big.h5.partial", "File too large")

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
