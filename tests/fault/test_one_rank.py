"""A file of all ranks that one of them cannot open or close, by means of strace."""

import os

from harness import FaultTest, Job, small_run


class OneRank(FaultTest):
    def job(self, command, path, error, call="openat"):
        """A job whose rank 1 alone fails to open the path, or fails in another call on it."""
        wrapper = self.injecting(path, f"{call}:error={error}")
        second = [":", "-n", "1", *wrapper, small_run.PROGRAM, *command]
        return Job(self.folder, None, [*command, *second], [small_run.MPIRUN, "--oversubscribe", "-n", "1"])

    def assert_named(self, command, path, error, code, *said):
        """The job ends, and says which rank failed."""
        job = self.job(command, path, error)
        self.assertEqual(job.wait(), code, job.text())
        self.assert_refused(job, f"rank 1 on node {os.uname().nodename}: {path}: cannot be opened", *said)

    def test_checkpoint(self):
        path = "outputs/run/checkpoints/checkpoint_00000012.h5.partial"
        self.assert_named(["train", "deck.toml"], path, "EACCES", 4, "Permission denied")
        self.assertFalse((self.folder / path).exists())

    def test_trace(self):
        """Rank 0 alone writes it."""
        job = self.job(["train", "deck.toml"], "outputs/run/trace.h5", "ENOENT")
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(job.messages(), [])

    def test_shard(self):
        self.assert_named(["shard", "out", "00.txt", "--text"], "out.h5.partial", "EIO", 7, "Input/output error")
        self.assertEqual(list(self.folder.glob("out*")), [])

    def test_shard_that_cannot_be_closed(self):
        """The others wait for the rank in the closing, and end with it."""
        job = self.job(["shard", "out", "00.txt", "--text"], self.folder / "out.h5.partial", "EIO", call="fsync")
        self.assertEqual(job.wait(), 7, job.text())
        self.assertIn("out.h5.partial: ", job.text())
        self.assertEqual(list(self.folder.glob("out*")), [])


if __name__ == "__main__":
    small_run.main()
