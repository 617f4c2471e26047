"""Files that cannot be what they are taken for, or that the system does not hand out: one line says why, at once."""

import os
import shutil
import struct

from harness import FaultTest, Job, small_run

NO_DIRECTORY = "a directory; name a file in it"
NO_FILE = "a device, FIFO or socket, not a regular file"
BIN = "a .bin file, which has no checksums; make a token shard of it with: nanorun shard OUTPUT FILE"


class UnfitFiles(FaultTest):
    def test_fifo_as_a_shard(self):
        os.mkfifo(self.folder / "fifo.h5")
        for key in ("data.train", "data.validation"):
            self.assert_refused(self.train(2, f'{key}=["fifo.h5"]', code=3), f"fifo.h5: {NO_FILE}")
        self.assert_refused(self.verify("fifo.h5", code=3), f"fifo.h5: {NO_FILE}")
        job = Job(self.folder, 1, ["export", "fifo.h5", "out.bin"])
        self.assertEqual(job.wait(), 3, job.text())
        self.assert_refused(job, f"fifo.h5: {NO_FILE}")

    def test_fifo_as_a_checkpoint(self):
        os.mkfifo(self.folder / "fifo.h5")
        self.assert_refused(self.train(2, "checkpoint.restart=fifo.h5", code=4), f"fifo.h5: {NO_FILE}")

    def test_device_as_a_shard(self):
        self.assert_refused(self.train(2, 'data.train=["/dev/zero"]', code=3), f"/dev/zero: {NO_FILE}")
        self.assert_refused(self.verify("/dev/zero", code=3), f"/dev/zero: {NO_FILE}")

    def test_directory_as_a_shard(self):
        (self.folder / "shards").mkdir()
        for path in ("shards", "shards/"):
            self.assert_refused(self.train(2, f'data.train=["{path}"]', code=3), f"{path}: {NO_DIRECTORY}")
        self.assert_refused(self.verify("shards", code=3), f"shards: {NO_DIRECTORY}")

    def test_bin_file_as_a_checkpoint_or_to_verify(self):
        (self.folder / "a.bin").write_bytes(struct.pack("<256i", 20240520, 1, 10, *[0] * 253) + bytes(20))
        self.assert_refused(self.verify("a.bin", code=3), f"a.bin: {BIN}")
        job = self.train(1, "checkpoint.restart=a.bin", code=4)
        self.assert_refused(job, "a.bin: a .bin file of tokens, not a checkpoint")
        job = Job(self.folder, 1, ["shard", "a", "a.bin"])
        self.assertEqual(job.wait(), 0, job.text())
        self.verify("a.h5")

    def test_file_without_a_size(self):
        """One of /proc would pass for an empty document."""
        job = Job(self.folder, 1, ["shard", "a", "--text", "/proc/cpuinfo"])
        self.assertEqual(job.wait(), 3, job.text())
        self.assert_refused(job, "/proc/cpuinfo: its file system tells no size")

    def test_reason_of_the_system(self):
        """Of a file that may not be opened, of the dead handle of a network file, and of a medium that fails."""
        shard = self.folder / "data.h5"
        data = f'data.train=["{shard}"]'
        faults = (("openat", "EACCES", "data.h5: cannot be opened: Permission denied"),
                  ("openat", "ESTALE", "data.h5: cannot be opened: Stale file handle"),
                  ("newfstatat", "ESTALE", "data.h5: cannot be accessed: Stale file handle"),
                  ("pread64", "EIO", "bytes at 0 cannot be read: Input/output error"),
                  ("pread64", "EIO:when=2+", "Input/output error"))
        for call, error, reason in faults:
            wrapper = self.injecting(shard, f"{call}:error={error}")
            with self.subTest(call=call, error=error):
                job = self.train(1, data, wrapper=wrapper, code=3)
                self.assert_refused(job, "data.h5: ", reason)

    def test_directory_that_cannot_be_listed(self):
        (self.folder / "shards").mkdir()
        shutil.copy(self.folder / "data.h5", self.folder / "shards" / "a.h5")
        job = self.train(1, f'data.train=["{self.folder}/shards/*.h5"]', code=3,
                         wrapper=self.injecting(self.folder / "shards", "openat:error=EACCES"))
        self.assert_refused(job, "shards/*.h5: ", "shards cannot be listed: Permission denied")
        self.assert_refused(self.train(1, 'data.train=["shards/b*.h5"]', code=3), "shards/b*.h5: no such file")


if __name__ == "__main__":
    small_run.main()
