"""Early stops: by signal, walltime, stop file, numbers that are not finite, a rank that dies or hangs."""

import os
import re
import select
import signal
import time

import harness
from harness import FaultTest, Job, restarted_from, small_run


class LostRanks:
    """What happens where a rank dies or hangs, for tests on CPUs and on devices."""

    long_run = ("train.steps=100000", "run.log_every=1")
    timeout = 2  # seconds of a collective

    def kill_a_rank(self, ranks):
        """Kills the last of the ranks."""
        job = self.start(ranks, *self.long_run, "checkpoint.every=2")
        job.until_step(5)
        os.kill(job.rank_pids()[-1], signal.SIGKILL)
        self.assertNotEqual(job.wait(), 0)
        last = ranks - 1
        self.assertRegex("".join(job.errors), rf"rank {last} .*signal 9|rank \d+: .*did not complete")
        self.verify(*(self.run_folder() / "checkpoints").glob("*.h5"))

    def assert_named(self, job, pids, culprit):
        """The watchdogs of other ranks blame `culprit`, and no rank is left."""
        self.assertEqual(job.wait(), 6, job.text())
        lines = [line for line in job.messages() if f"did not complete within {self.timeout} s: " in line]
        self.assertTrue(lines, job.text())
        for line in lines:
            self.assertRegex(line, rf"nanorun: rank \d+: [\w .]+ at step \d+ did not complete within {self.timeout} s: "
                                   rf"{culprit}")
        self.assert_gone(pids)

    def assert_gone(self, pids):
        limit = harness.Deadline(harness.TIMEOUT)
        while any(map(harness.running, pids)) and not limit.over():
            time.sleep(0.05)
        self.assertFalse(list(filter(harness.running, pids)))

    def stop_a_rank(self, ranks, silent):
        job = self.start(ranks, *self.long_run, f"comm.timeout_seconds={self.timeout}")
        job.until_step(3)
        pids = job.rank_pids()
        os.kill(pids[silent], signal.SIGSTOP)
        self.assert_named(job, pids, f"no sign of life from rank {silent}, stopped or dead")


class Stop(LostRanks, FaultTest):
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

    def test_sigusr1_to_one_rank(self):
        self.stop_by_signal(signal.SIGUSR1, "SIGUSR1 received")

    def test_sigusr1_to_mpirun(self):
        """Open MPI's passes it on."""
        job = self.start(2, *self.long_run)
        job.until_step(3)
        job.process.send_signal(signal.SIGUSR1)
        self.assert_stopped(job, "SIGUSR1 received")

    def test_walltime(self):
        self.assert_stopped(self.start(2, *self.long_run, "stop.walltime_seconds=2"), "walltime limit reached")

    def stop_in_time(self, limit, *overrides, parts, **faults):
        """A run of slow parts on one rank ends before the limit, and not earlier than twice the sum of the times of
        these parts before it. Returns the job."""
        (self.folder / "fault").touch()
        environment = {"LD_PRELOAD": os.environ["NANORUN_FAULTY_GEMM"], "FAULT_RANK": "",
                       "FAULT_FILE": self.folder / "fault"} | faults
        begin = time.monotonic()
        job = self.start(None, *overrides, f"stop.walltime_seconds={limit}",
                         wrapper=["env", *(f"{key}={value}" for key, value in environment.items())])
        self.assertEqual(job.wait(), 75, job.text())
        self.assertLessEqual(time.monotonic() - begin, limit, job.text())
        line, = re.findall(r"(\S+) s of stop.walltime_seconds = .* are over: a step takes up to (\S+) s, "
                           r"a validation (\S+) s, a checkpoint (\S+) s", job.text())
        over, *times = map(float, line)
        foreseen = sum(dict(zip(("step", "validation", "checkpoint"), times))[part] for part in parts)
        self.assertGreaterEqual(over, limit - 2 * foreseen, job.text())
        self.assertGreater(self.summary()["steps"], 0)
        return job

    def test_walltime_of_slow_steps(self):
        job = self.stop_in_time(15, *self.long_run, parts=("step", "checkpoint"), FAULT="slow")
        self.assert_stopped(job, "walltime limit reached")

    def test_walltime_of_slow_validations(self):
        """One of them would end after the limit."""
        job = self.stop_in_time(15, *self.long_run, "validation.every=4", "validation.tokens=32768", "train.sequences=1",
                                parts=("validation", "checkpoint"), FAULT="slow", FAULT_MICROSECONDS=1000)
        self.assertEqual(self.summary()["steps"] % 4, 0, job.text())

    def test_walltime_before_the_validation_at_the_end(self):
        """Which the run has not seen before it decides whether to make its last step."""
        slow = {"FAULT": "slow", "FAULT_MICROSECONDS": 1000}
        deck = ("train.steps=3", "train.sequences=1", "validation.tokens=32768")
        self.stop_in_time(7, *deck, parts=("step", "validation", "checkpoint"), **slow)
        self.assertEqual(self.summary()["steps"], 2)
        self.assertNotIn("validation_loss", self.summary())
        self.assertEqual(restarted_from(self.train(1, *deck)), 2)

    def test_walltime_of_slow_checkpoints(self):
        """The first one is foretold by a trial, the others by the one before."""
        for name, every in (("at_end", 0), ("often", 100)):
            (self.folder / "outputs" / "run").parent.mkdir(exist_ok=True)
            job = self.stop_in_time(12, *self.long_run, f"checkpoint.every={every}", "checkpoint.restart=none",
                                    parts=("step", "checkpoint"), FAULT_BYTES_PER_SECOND=400_000)
            self.assertEqual(self.files()[-1], self.checkpoint(self.summary()["steps"]).name, name)

    def test_walltime_that_leaves_no_time_for_a_step(self):
        """The first one is made all the same, so that a chain of runs gets on."""
        self.train(2, "stop.step=3", code=75)
        job = self.train(2, "stop.walltime_seconds=0.01", code=75)
        self.assertIn("stopped at step 4: walltime limit reached", job.text())
        self.assertEqual(restarted_from(self.train(2)), 4)

    def test_stop_file(self):
        job = self.start(2, *self.long_run)
        job.until_step(3)
        (self.run_folder() / "stop").touch()
        self.assert_stopped(job, "stop file found")

    def test_stop_file_made_during_the_start(self):
        """It stops the run before the first step; the next start removes it."""
        self.train(None, "stop.step=3", code=75)
        reader, deck = os.pipe()
        with open(deck, "wb", buffering=0) as deck, open(reader, "rb") as reader:
            job = Job(self.folder, None, ["train", "/dev/stdin", *self.long_run], stdin=reader)
            deck.write(b"#\n")
            job.until(lambda: not select.select([reader], [], [], 0)[0], "look at the deck")
            (self.run_folder() / "stop").touch()
            deck.write((self.folder / "deck.toml").read_bytes())
        self.assert_stopped(job, "stop file found")
        self.assertEqual(harness.losses(job), {})

    def test_stop_file_that_is_one_of_the_own_files(self):
        """Also by another way to the same directory, and before the file is there."""
        (self.folder / "link").symlink_to("outputs")
        for file in ("outputs/run/lock", "outputs/run/log.txt", "outputs/run/./trace.h5", "link/run/summary.json.partial",
                     self.folder / "outputs" / "run" / "checkpoints", "outputs/run/checkpoints/checkpoint_00000012.h5",
                     "link/run/heartbeats/0", "outputs/run/checkpoints/x/y", "link/run/heartbeats/x/y/z"):
            job = self.train(None, f"stop.file={file}", code=2)
            self.assert_refused(job, f"stop.file = {file}: is one of the run's own files")
        for file, said in (("outputs/halt/", "ends in '/'"), ("deck.toml/halt", "deck.toml is no directory"),
                           ("deck.toml/a/halt", "deck.toml is no directory")):
            self.assert_refused(self.train(None, f"stop.file={file}", code=2), f"stop.file = {file}: {said}")
        self.assertFalse(self.run_folder().exists())
        job = self.start(None, *self.long_run, "stop.file=outputs/run/halt")
        job.until_step(3)
        (self.run_folder() / "halt").touch()
        self.assert_stopped(job, "stop file found")

    def test_stop_file_of_an_earlier_stop_is_removed(self):
        for restart in ("auto", "none"):
            self.train(2, f"run.name={restart}", "stop.step=3", code=75)
            stop = self.folder / "outputs" / restart / "stop"
            stop.touch()
            again = self.train(2, f"run.name={restart}", f"checkpoint.restart={restart}")
            self.assertIn(f"removed the stop file of an earlier stop: outputs/{restart}/stop\n", again.output)
            self.assertFalse(stop.exists())

    def test_newer_stop_file_outlives_the_old_directory(self):
        self.train(2, "stop.step=3", code=75)
        stop = self.run_folder() / "stop"
        stop.touch()
        os.utime(stop, (time.time() + harness.TIMEOUT,) * 2)
        job = self.train(2, "checkpoint.restart=none", code=75)
        self.assertIn("stopped at step 0: stop file found", job.text())
        self.assertTrue((self.run_folder().parent / "run.1").is_dir())

    def test_stop_file_with_content_is_not_heeded(self):
        """The next start could not remove it."""
        job = self.start(2, *self.long_run)
        job.until_step(3)
        stop = self.run_folder() / "stop"
        stop.write_text("notes")
        job.until(lambda: any("only an empty file stops the run" in line for line in job.errors), "warning")
        stop.write_text("")
        self.assert_stopped(job, "stop file found")

    def assert_not_finite(self, lr, what, step):
        """A learning rate that breaks the weights after step 4 ends the run at `step` and leaves what was saved."""
        self.train(2, "stop.step=4", code=75)
        job = self.train(2, f"optimizer.lr_embedding={lr}", "checkpoint.every=1", code=5)
        self.assertEqual(restarted_from(job), 4)
        self.assert_refused(job, what, f"at step {step};", self.checkpoint(4).name)
        self.assertEqual(self.files(), [self.checkpoint(4).name])
        self.verify(self.checkpoint(4))
        self.assertEqual(restarted_from(self.train(2)), 4)

    def test_weights_not_finite(self):
        self.assert_not_finite("1e300", "weights overflowed", 5)

    def test_weights_whose_squares_overflow(self):
        """The weights are finite, but norms of them are not, and what is divided by those is zero."""
        self.assert_not_finite("1e30", "weights overflowed", 5)

    def test_loss_not_finite(self):
        """Initial weights so large that the forward pass overflows."""
        job = self.train(2, "model.init_scale=1e30", "model.zero_outputs=false", "validation.tokens=0", code=5)
        self.assert_refused(job, "the loss is NaN at step 1; last good checkpoint: none")

    def test_validation_loss_not_finite(self):
        job = self.train(2, "model.init_scale=1e30", "model.zero_outputs=false", "validation.every=1", code=5)
        self.assert_refused(job, "the validation loss is NaN at step 0; last good checkpoint: none")

    def test_killed_rank_ends_the_job(self):
        self.kill_a_rank(2)

    def test_stopped_rank_is_named(self):
        self.stop_a_rank(4, 2)

    def test_log_says_which_rank_was_silent(self):
        self.stop_a_rank(2, 1)
        self.assertRegex((self.run_folder() / "log.txt").read_text(),
                         r"\nerror: rank 0: .* did not complete .*: no sign of life from rank 1, stopped or dead.*\n\Z")

    def test_stopped_root_is_named(self):
        self.stop_a_rank(2, 0)

    def start_faulty(self, fault, *overrides, ranks=4):
        """A job whose rank 1, or only rank, meets the fault in mid-step from step 3 on, and its processes."""
        trigger = self.folder / "fault"
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", f"FAULT={fault}",
                   f"FAULT_RANK={min(ranks - 1, 1)}", f"FAULT_FILE={trigger}"]
        job = self.start(ranks, *self.long_run, *overrides, wrapper=wrapper)
        job.until_step(3)
        pids = job.rank_pids()
        trigger.touch()
        return job, pids

    def test_rank_that_hangs_outside_collectives_is_named(self):
        job, pids = self.start_faulty("hang", f"comm.timeout_seconds={self.timeout}")
        self.assert_named(job, pids, r"rank 1 of step \d+ hangs outside of collectives")

    def test_only_rank_that_hangs_ends(self):
        job, pids = self.start_faulty("hang", f"comm.timeout_seconds={self.timeout}", ranks=1)
        self.assertEqual(job.wait(), 6, job.text())
        self.assert_refused(job, "rank 0: hangs outside of collectives at step", "comm.timeout_seconds")
        self.assert_gone(pids)

    def test_slow_rank_is_not_taken_for_one_that_hangs(self):
        """Its steps take longer than collectives may."""
        job, _ = self.start_faulty("slow", "comm.timeout_seconds=2", ranks=1)
        slow = re.compile(r"step .* (\d+)\.\d ms/step")
        job.until(lambda: any(int(m[1]) > 2000 for m in map(slow.match, job.output) if m), "slow step")
        (self.folder / "fault").unlink()
        (self.run_folder() / "stop").touch()
        self.assert_stopped(job, "stop file found")

    def test_rank_that_fails_alone_in_a_checkpoint_ends_the_job(self):
        """Open MPI does not return from the call in which the ranks open the file."""
        job, pids = self.start_faulty("share", f"comm.timeout_seconds={self.timeout}", 'checkpoint.mpi_hints="cb_nodes=1"')
        (self.run_folder() / "stop").touch()
        self.assert_named(job, pids, "all ranks are alive and have entered it, .*, or a rank has failed in it")
        self.assertIn("write of a checkpoint at step", job.text())
        self.assertEqual([name for name in self.files() if name.endswith(".h5")], [])

    def test_checkpoint_slower_than_the_timeout(self):
        """Each call of the ranks ends within it."""
        rate = 100e3
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_FAULTY_GEMM']}", f"FAULT_BYTES_PER_SECOND={rate}"]
        self.train(2, "stop.step=4", "comm.timeout_seconds=5", wrapper=wrapper, code=75)
        self.assertGreater(self.checkpoint(4).stat().st_size, 5 * rate)
        self.verify(self.checkpoint(4))

    def test_rank_that_fails_in_a_step_ends_the_job(self):
        """At once, with its own message: the others wait for it longer than a test may last."""
        job, pids = self.start_faulty("throw", f"comm.timeout_seconds={2 * harness.TIMEOUT}")
        self.assertEqual(job.wait(), 1, job.text())
        self.assert_refused(job, f"nanorun: rank 1 on node {os.uname().nodename}: a faulty GEMM")
        self.assert_gone(pids)


if __name__ == "__main__":
    small_run.main()
