"""Signals at any time, and terminals that close."""

import os
import re
import signal
import time

from harness import FaultTest, Job, restarted_from, small_run

LONG_RUN = ("train.steps=100000", "run.log_every=1")


def preloaded(**faults):
    """A wrapper that starts the program with faults of faulty_gemm.cpp."""
    return ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", *(f"{key}={faults[key]}" for key in faults)]


class Signals(FaultTest):
    def assert_stopped(self, job, reason, step=None):
        """The job ended in order, with a checkpoint of the step at which its log says that it stopped."""
        self.assertEqual(job.wait(), 75, job.text())
        stopped, = re.findall(r"stopped at step (\d+): (.*);", (self.run_folder() / "log.txt").read_text())
        self.assertEqual(stopped[1], reason)
        self.assertEqual(self.summary()["steps"], int(stopped[0]))
        if step is None:
            self.assertEqual(self.files(), [self.checkpoint(int(stopped[0])).name])
        else:
            self.assertEqual(int(stopped[0]), step)

    def received_early(self, ranks, number, reason):
        rank = "" if ranks is None else ranks - 1
        job = self.start(ranks, *LONG_RUN, wrapper=preloaded(FAULT_RANK=rank, FAULT_SIGNAL=int(number)))
        self.assert_stopped(job, reason, step=0)
        self.assertEqual(self.files(), [])
        again = self.train(ranks, *LONG_RUN, "stop.step=2", code=75)
        self.assertIsNone(restarted_from(again))

    def test_sigusr2_before_main_begins(self):
        self.received_early(2, signal.SIGUSR2, "SIGUSR2 received")

    def test_sigusr1_before_main_begins(self):
        self.received_early(2, signal.SIGUSR1, "SIGUSR1 received")

    def test_sigusr1_without_mpirun(self):
        self.received_in_a_run(None, signal.SIGUSR1, "SIGUSR1 received")

    def test_sigusr1_that_a_library_handles(self):
        """It stays the library's; the log says so at the start."""
        wrapper = preloaded(FAULT_RANK="", FAULT_HANDLED_SIGNAL=int(signal.SIGUSR1))
        job = self.start(None, *LONG_RUN, wrapper=wrapper)
        job.until_step(3)
        job.process.send_signal(signal.SIGUSR1)
        job.until_step(6)
        said = re.search(r"SIGUSR1 does not stop this run, since \S*faulty_gemm\S* handles it: ", job.text())
        self.assertIsNotNone(said, job.text())
        self.assertLess(job.text().index(said[0]), job.text().index("step     1/"))
        job.process.send_signal(signal.SIGUSR2)
        self.assert_stopped(job, "SIGUSR2 received")

    def test_sigusr2_that_a_library_handles_is_taken_back(self):
        wrapper = preloaded(FAULT_RANK="", FAULT_HANDLED_SIGNAL=int(signal.SIGUSR2))
        job = self.start(None, *LONG_RUN, wrapper=wrapper)
        job.until_step(3)
        job.process.send_signal(signal.SIGUSR2)
        self.assert_stopped(job, "SIGUSR2 received")
        self.assertNotIn("does not stop this run", job.text())

    def test_sigterm_before_main_begins(self):
        self.received_early(None, signal.SIGTERM, "SIGTERM received")

    def test_sigterm_before_main_begins_ends_other_commands(self):
        wrapper = preloaded(FAULT_RANK="", FAULT_SIGNAL=int(signal.SIGTERM))
        for arguments in (["verify", "data.h5"], ["train", "deck.toml", "--dry-run"]):
            job = Job(self.folder, None, arguments, wrapper)
            self.assertEqual(job.wait(), -signal.SIGTERM, job.text())
            self.assertEqual(job.output, [])

    def received_in_a_run(self, ranks, number, reason):
        job = self.start(ranks, *LONG_RUN)
        job.until_step(3)
        pid = job.rank_pids()[-1]
        os.kill(pid, number)
        os.kill(pid, number)  # a launcher or a closing terminal may do this
        self.assert_stopped(job, reason)

    def test_signal_in_a_checkpoint_stops_the_run_there(self):
        partial = f"{self.run_folder()}/checkpoints/checkpoint_00000003.h5.partial"
        job = self.start(None, *LONG_RUN, "checkpoint.every=3",
                         wrapper=self.injecting(partial, "fsync:signal=SIGTERM"))
        self.assert_stopped(job, "SIGTERM received", step=3)
        self.assertEqual(self.files(), [self.checkpoint(3).name])

    def test_sigint_without_mpirun(self):
        self.received_in_a_run(None, signal.SIGINT, "SIGINT received")

    def test_sigint_to_one_rank(self):
        self.received_in_a_run(2, signal.SIGINT, "SIGINT received")

    def test_sighup_without_mpirun(self):
        self.received_in_a_run(None, signal.SIGHUP, "SIGHUP received")

    def test_sigterm_twice_at_once(self):
        self.received_in_a_run(None, signal.SIGTERM, "SIGTERM received")

    def test_ignored_signals_stay_ignored(self):
        """As for the background jobs of a shell, and under nohup."""
        job = self.start(None, *LONG_RUN, wrapper=["sh", "-c", "trap '' INT HUP USR1 USR2 TERM; exec \"$@\"", "sh"])
        job.until_step(3)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            job.process.send_signal(number)
        job.until_step(5)
        (self.run_folder() / "stop").touch()
        self.assert_stopped(job, "stop file found")

    def on_terminal(self):
        """A run on a terminal of its own, at step 3 or later, and the terminal."""
        terminal, end = os.openpty()
        job = self.start(None, *LONG_RUN, wrapper=["setsid", "--ctty"], stdin=end, stdout=end, stderr=end)
        os.close(end)
        shown = b""
        while not re.search(rb"step +3/", shown):
            shown += os.read(terminal, 4096)
        return job, terminal

    def test_closed_terminal(self):
        job, terminal = self.on_terminal()
        os.close(terminal)
        self.assert_stopped(job, "SIGHUP received")

    def test_interrupt_key(self):
        job, terminal = self.on_terminal()
        os.write(terminal, b"\x03")
        os.set_blocking(terminal, False)
        while job.process.poll() is None:  # the terminal holds little that nobody reads
            try:
                os.read(terminal, 4096)
            except OSError:
                time.sleep(0.01)
        os.close(terminal)
        self.assert_stopped(job, "SIGINT received")

    def test_reader_of_the_output_ends(self):
        reader, end = os.pipe()
        job = self.start(None, *LONG_RUN, stdout=end)
        os.close(end)
        os.read(reader, 1)
        os.close(reader)
        log = self.run_folder() / "log.txt"
        job.until(lambda: log.exists() and re.search(r"step +5/", log.read_text()), "step 5")
        job.process.send_signal(signal.SIGTERM)
        self.assert_stopped(job, "SIGTERM received")

    def test_second_signal_ends_a_run_that_hangs(self):
        trigger = self.folder / "fault"
        job = self.start(None, *LONG_RUN, wrapper=preloaded(FAULT="hang", FAULT_RANK="", FAULT_FILE=trigger))
        job.until_step(3)
        trigger.touch()
        for number in (signal.SIGUSR2, signal.SIGUSR2, signal.SIGINT, signal.SIGINT):
            time.sleep(0.3)
            job.process.send_signal(number)
        time.sleep(1.1)  # one that comes sooner does not count
        self.assertIsNone(job.process.poll())
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(), -signal.SIGTERM, job.text())
        self.assert_refused(job, "a second signal ends the program at once")
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    small_run.main()
