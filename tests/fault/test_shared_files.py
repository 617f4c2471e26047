"""Files that many ranks open: how often they ask the file system, as strace counts it, and hints for MPI-IO."""

import os
import re
import shutil

from harness import FaultTest, Job, restarted_from, small_run

WAYS = {"opens": r"openat\(.* = \d+$",
        "stats": r"newfstatat\(AT_FDCWD, .*, 0\) = 0$|(stat|statx)\(.* = 0$",
        "checksums": r"pread64\(.*, 8, [1-9]\d*\) = 8$",  # of the only block
        "tokens": r"pread64\(.*, 258, \d+\) = 258$"}  # of a sequence
OPENS = 3  # to read what the shard says of itself: what the file is, what HDF5 would meet in it, HDF5
STATS = 2  # of an open to read tokens


class SharedFiles(FaultTest):
    def calls_on_shard(self, ranks):
        """Number of system calls of each rank on the only shard, by their purpose."""
        if shutil.which("strace") is None or Job(self.folder, None, ["keys"], ["strace", "-o", "no"]).wait() != 0:
            self.skipTest("needs strace, and the right to trace")
        # A file for each thread (-ff): in one file, a call splits in two lines when another thread's call ends within it.
        script = ("exec strace -ff -qq -e trace=openat,newfstatat,stat,statx,pread64 -P data.h5 "
                  "-o strace.$OMPI_COMM_WORLD_RANK \"$0\" \"$@\"")
        self.train(ranks, "train.steps=2", f"train.sequences={ranks}", "train.length=128", "validation.tokens=0",
                   "model.layers=2", wrapper=["sh", "-c", script])
        lines = [[line for path in self.folder.glob(f"strace.{rank}.*") for line in path.read_text().splitlines()]
                 for rank in range(ranks)]
        return {way: [sum(re.match(pattern, line) is not None for line in of_rank) for of_rank in lines]
                for way, pattern in WAYS.items()}

    def count_calls(self, ranks):
        """Rank 0 reads for its node what the shard says of itself, its checksums among it. Every rank opens the shard once
        to read tokens, and asks for its state once for each read."""
        calls = self.calls_on_shard(ranks)
        self.assertEqual(calls["opens"], [OPENS + 1] + [1] * (ranks - 1))
        self.assertEqual(calls["checksums"], [1] + [0] * (ranks - 1))
        self.assertTrue(all(calls["tokens"]), calls)
        stats = [stats - reads for stats, reads in zip(calls["stats"], calls["tokens"])]
        self.assertEqual(stats, [stats[0]] + [STATS] * (ranks - 1))
        self.assertLess(stats[0], 8 * STATS)

    def test_sixteen_ranks_open_a_shard(self):
        self.count_calls(16)

    def test_sixty_four_ranks_open_a_shard(self):
        self.count_calls(64)

    def test_hints_for_mpi_io(self):
        """MPI ignores what it does not know."""
        hints = ("romio_cb_write=enable", "cb_nodes=1", "nobody_knows=this")
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", "FAULT_HINTS=print"]
        job = self.train(2, f'checkpoint.mpi_hints="{";".join(hints)}"', "stop.step=4", wrapper=wrapper, code=75)
        # Each file that the ranks share: the trial before the first step, and the checkpoint.
        given = [line for line in job.errors if line.startswith("hint ")]
        self.assertEqual(sorted(given), sorted(2 * 2 * [f"hint {hint}\n" for hint in hints]))
        self.verify(self.checkpoint(4))
        job = self.train(2, wrapper=wrapper)
        self.assertEqual(restarted_from(job), 4)
        self.assertEqual(job.errors, [])

    def test_hints_that_are_none(self):
        for hints in ("cb_nodes", "cb_nodes=1;", "cb_nodes=1;cb_nodes=2", "cb nodes=1"):
            job = self.train(2, f'checkpoint.mpi_hints="{hints}"', code=2)
            self.assert_refused(job, "checkpoint.mpi_hints: got ", "NAME=VALUE;NAME=VALUE")
        self.assertFalse(self.run_folder().exists())


if __name__ == "__main__":
    small_run.main()
