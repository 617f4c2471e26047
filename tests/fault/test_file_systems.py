"""File systems that lack what others have, and disks that stand still, by means of strace."""

import shutil

from harness import FaultTest, Job, small_run


class FileSystems(FaultTest):
    def failing(self, call, error):
        """Wrapper that starts the program where a system call always fails."""
        if shutil.which("strace") is None:
            self.skipTest("needs strace")
        wrapper = ["strace", "-f", "-qq", "-o", self.folder / "strace", "-e", f"trace={call}", "-e",
                   f"inject={call}:error={error}"]
        if Job(self.folder, None, ["keys"], wrapper=wrapper).wait() != 0:
            self.skipTest("strace may not trace here")
        return wrapper

    def train_without_locks(self, error, *overrides):
        """A run, with validation, that goes on with an earlier one."""
        wrapper = self.failing("flock", error)
        self.train(None, "stop.step=5", *overrides, code=75)
        job = self.train(None, *overrides, wrapper=wrapper)
        self.assert_refused(job, "no locks on this file system; nothing keeps a second job away")
        self.assert_traced("outputs/run/trace.h5", 12)
        return wrapper

    def test_no_locks(self):
        wrapper = self.train_without_locks("ENOLCK", "validation.every=4")
        job = Job(self.folder, None, ["shard", "other.h5", "00.txt", "--text"], wrapper=wrapper)
        self.assertEqual(job.wait(), 0, job.text())
        checkpoint = "outputs/run/checkpoints/checkpoint_00000012.h5"
        for words in (["verify", "other.h5", checkpoint], ["eval", checkpoint, "--data", "data.h5", "--tokens", 256]):
            job = Job(self.folder, None, words, wrapper=wrapper)
            self.assertEqual(job.wait(), 0, job.text())

    def test_no_locks_in_other_words(self):
        for error in ("EOPNOTSUPP", "EINVAL"):
            with self.subTest(error=error):
                self.train_without_locks(error)
                shutil.rmtree(self.folder / "outputs")

    def assert_traced(self, path, steps):
        try:
            import h5py
        except ImportError:
            return
        with h5py.File(self.folder / path) as trace:
            self.assertEqual(list(trace["step"]), list(range(steps)))

    def test_locks_that_hdf5_must_take(self):
        """As the user's environment demands; the message names the variable."""
        wrapper = ["env", "HDF5_USE_FILE_LOCKING=TRUE", *self.failing("flock", "ENOLCK")]
        job = self.train(None, wrapper=wrapper, code=3)
        self.assert_refused(job, "data.h5: ", "HDF5_USE_FILE_LOCKING must not be TRUE here")
        self.train(None, wrapper=["env", "HDF5_USE_FILE_LOCKING=FALSE", *wrapper[2:]])

    def test_best_effort(self):
        """As sites set it, so that a file system without locks is no obstacle."""
        wrapper = ["env", "HDF5_USE_FILE_LOCKING=BEST_EFFORT", *self.failing("flock", "ENOLCK")]
        self.train(None, wrapper=wrapper)
        self.assert_traced("outputs/run/trace.h5", 12)

    def test_locks_that_fail(self):
        """The message names the error instead of another job."""
        for error, text in (("ESTALE", "Stale file handle"), ("EINTR", "Interrupted system call")):
            with self.subTest(error=error):
                wrapper = self.injecting(self.run_folder() / "lock", f"flock:error={error}")
                job = self.train(None, wrapper=wrapper, code=7)
                self.assert_refused(job, f"outputs/run/lock: cannot be locked: {text}")

    def test_locks_that_fail_for_a_moment(self):
        """Whichever file they are of: the lock is tried again."""
        for error in ("EINTR", "ESTALE"):
            for calls in ("1+2", "2+2"):
                with self.subTest(error=error, calls=calls):
                    self.train(None, "checkpoint.every=4", wrapper=self.failing("flock", f"{error}:when={calls}"))
                    self.assert_traced("outputs/run/trace.h5", 12)
                    self.verify("outputs/run/checkpoints/checkpoint_00000012.h5")
                    shutil.rmtree(self.folder / "outputs")

    def test_locks_refused_for_a_moment(self):
        """As of a server that is short of locks, or of a program that has just closed the file: nobody holds them."""
        for error in ("ENOLCK", "EAGAIN"):
            for call in (1, 2, 3, 4):
                with self.subTest(error=error, call=call):
                    job = self.train(None, "checkpoint.every=4", wrapper=self.failing("flock", f"{error}:when={call}"))
                    self.assertEqual(job.messages(), [])
                    self.assertIn("INJECTED", (self.folder / "strace").read_text())
                    self.assert_traced("outputs/run/trace.h5", 12)
                    self.verify("outputs/run/checkpoints/checkpoint_00000012.h5")
                    shutil.rmtree(self.folder / "outputs")

    def test_a_dry_run_tries_a_lock_again(self):
        self.train(None, "stop.step=5", code=75)
        wrapper = self.injecting("outputs/run/lock", "flock:error=EAGAIN:when=1")
        job = Job(self.folder, None, ["train", "deck.toml", "--dry-run"], wrapper=wrapper)
        self.assertEqual(job.wait(), 0, job.text())
        self.assertIn("INJECTED", (self.folder / "strace").read_text())
        self.assertNotIn("in use by", job.text())

    def test_locks_refused_for_ever(self):
        """Another holder is told from a file system without locks, and neither is waited for."""
        for error, code, said in (("EAGAIN", 3, "data.h5: another program has it open, and HDF5's lock on it"),
                                  ("ENOLCK", 0, "no locks on this file system; nothing keeps a second job away")):
            with self.subTest(error=error):
                self.assert_refused(self.train(None, wrapper=self.failing("flock", error), code=code), said)

    def test_trace_that_fails(self):
        """What is lost is said with the error, of which no other program is the cause."""
        for call, said in (("pwrite64", "trace.h5: "), ("fallocate", "trace.h5: cannot be given space: ")):
            with self.subTest(call=call):
                job = self.train(None, wrapper=self.injecting(self.run_folder() / "trace.h5", f"{call}:error=ESTALE"))
                lost = [line for line in job.messages() if "it stays so to the end" in line]
                self.assertEqual(len(lost), 1, job.text())
                self.assertIn(said, lost[0])
                self.assertIn("Stale file handle", lost[0])
                self.assertNotIn("no space", job.text())
                shutil.rmtree(self.folder / "outputs")

    def test_directories_that_cannot_be_flushed(self):
        """Their files still are: where the disk itself fails, that is an error."""
        folders = ("outputs/run", "outputs/run/checkpoints")
        self.train(None, "stop.step=1", code=75)
        for error, code in (("EINVAL", 0), ("EOPNOTSUPP", 0), ("EIO", 7)):
            with self.subTest(error=error):
                shutil.rmtree(self.folder / "outputs")
                self.train(None, "stop.step=1", code=75)
                wrapper = self.injecting(folders[0], f"fsync:error={error}")
                wrapper[wrapper.index("-P"):wrapper.index("-P")] = ["-P", folders[1]]
                job = self.train(None, wrapper=wrapper, code=code)
                calls = (self.folder / "strace").read_text()
                self.assertRegex(calls, rf"fsync\(\d+.*{error}.*INJECTED")
                if code == 0:
                    self.assertEqual(job.messages(), [])

    def test_disk_that_stands_still(self):
        """No rank has died: rank 0 waits for the disk, and the others for rank 0."""
        wrapper = self.injecting(self.run_folder() / "log.txt", "write,openat:delay_enter=60000000:when=4+")
        wrapper[wrapper.index("-P"):wrapper.index("-P")] = ["-P", self.run_folder() / "heartbeats" / "0"]
        job = self.start(2, "train.steps=100000", "comm.timeout_seconds=4", wrapper=wrapper)
        self.assertEqual(job.wait(), 6, job.text())
        said = [line for line in job.messages() if "did not complete within 4 s: " in line]
        self.assertTrue(said, job.text())
        for line in said:
            self.assertRegex(line, "the file system of outputs/run/heartbeats has not answered for .* s, and the ranks may")


if __name__ == "__main__":
    small_run.main()
