"""Standard streams that are closed, full or read by nobody."""

import os
import re
import subprocess

from harness import TIMEOUT, FaultTest, Job, small_run

CLOSED = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]


class Streams(FaultTest):
    def no_space(self):
        full = open("/dev/full", "w")
        self.addCleanup(full.close)
        return full

    def assert_output_lost(self, *arguments, **streams):
        job = Job(self.folder, None, arguments, **streams)
        self.assertEqual(job.wait(), 7, job.text())
        self.assert_refused(job, "standard output cannot be written: ")

    def test_full_output(self):
        for arguments in (["keys"], ["--version"], ["train", "--help"], ["verify", "data.h5", "data.h5"],
                          ["shard", "s.h5", "00.txt", "--text"], ["train", "deck.toml", "--dry-run"]):
            self.assert_output_lost(*arguments, stdout=self.no_space())
        self.verify(self.folder / "s.h5")

    def test_closed_output(self):
        self.assert_output_lost("keys", wrapper=["sh", "-c", 'exec "$@" >&-', "sh"])

    def test_output_that_takes_nothing(self):
        """A write that returns 0 would do so for ever."""
        self.assert_output_lost("keys", wrapper=["sh", "-c", 'exec "$@" >/proc/self/mem', "sh"])
        job = Job(self.folder, None, ["absent"], wrapper=["sh", "-c", 'exec "$@" 2>/proc/self/mem', "sh"])
        self.assertEqual(job.wait(), 2)
        wrapper = self.injecting(self.folder / "s.bin.partial", "write:retval=0")
        job = Job(self.folder, None, ["export", "data.h5", "s.bin"], wrapper)
        self.assertEqual(job.wait(), 7, job.text())
        self.assert_refused(job, "s.bin.partial: cannot be written: Input/output error")

    def unread(self):
        """A pipe as behind `| head`, once that has ended."""
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        return writer

    def test_pipe_that_nobody_reads(self):
        """Every command that prints ends quietly, and has done what else it does."""
        self.train(None, "trace.enabled=false")
        checkpoint = self.checkpoint(12)
        for arguments in (["keys"], ["info"], ["--version"], ["--version", "--verbose"], ["--help"], ["train", "--help"],
                          ["verify", "data.h5", checkpoint], ["shard", "s.h5", "00.txt", "--text"],
                          ["train", "deck.toml", "--dry-run"], ["eval", checkpoint], ["sample", checkpoint]):
            job = Job(self.folder, None, arguments, stdout=self.unread())
            self.assertEqual((job.wait(), job.text()), (0, ""), arguments)
        self.verify(self.folder / "s.h5")

    def test_verification_outlives_no_output(self):
        """The first error decides on the exit code."""
        job = Job(self.folder, None, ["verify", "absent.h5", "data.h5"], stdout=self.no_space())
        self.assertEqual(job.wait(), 3, job.text())
        job = Job(self.folder, None, ["verify", "data.h5", "absent.h5"], stdout=self.unread())
        self.assertEqual(job.wait(), 3, job.text())
        self.assert_refused(job, "absent.h5: ")

    def test_sampling_ends_where_nobody_reads(self):
        """Not at its last token, which would take hours."""
        self.train(None, "trace.enabled=false")
        command = [small_run.PROGRAM, "sample", self.checkpoint(12), "--prompt", "a\n", "--tokens", "1000000"]
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
            self.assertEqual(job.stdout.readline(), b"a\n")
            job.stdout.close()
            self.assertEqual((job.wait(TIMEOUT), job.stderr.read()), (0, b""))

    def test_training_on_full_output_goes_on(self):
        job = self.start(None, stdout=self.no_space())
        self.assertEqual(job.wait(), 0, job.text())
        self.assert_refused(job, "warning: standard output cannot be written: No space left on device; logging "
                                 "continues in log.txt only")
        log = (self.run_folder() / "log.txt").read_text()
        self.assertEqual(sorted(map(int, re.findall(r"^step +(\d+)/12 ", log, re.MULTILINE))), list(range(1, 13)))

    def test_no_file_takes_the_place_of_a_standard_stream(self):
        job = self.start(None, "train.steps=100000", wrapper=CLOSED)
        log = self.run_folder() / "log.txt"
        job.until(lambda: log.exists() and re.search(r"^step +1/", log.read_text(), re.MULTILINE), "step 1")
        places = [os.readlink(f"/proc/{job.process.pid}/fd/{descriptor}") for descriptor in range(3)]
        self.assertEqual(places, ["/dev/null"] * 3)
        (self.run_folder() / "stop").touch()
        self.assertEqual(job.wait(), 75)
        self.verify(self.checkpoint(self.summary()["steps"]))


if __name__ == "__main__":
    small_run.main()
