"""The job scripts under a real Slurm: ends, time limits, cancelled jobs, dying ranks and nodes, job arrays."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import cluster
import h5py

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "fault"))
from harness import FaultTest, small_run  # noqa: E402

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
LONG = "train.steps=100000"


def status(pid):
    """State of a process, such as T for stopped, and the mask of its pending signals; None once it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = dict(re.findall(r"^(\w+):\s*(\w+)", text, re.MULTILINE))
    return fields["State"], int(fields["ShdPnd"], 16)


class SlurmTest(FaultTest):
    """Jobs are submitted from the test's directory, which has the job scripts and the build of the repository."""

    def setUp(self):
        super().setUp()
        self.slurm = cluster.Cluster()
        self.addCleanup(self.slurm.stop)
        self.slurm.environment |= {
            "NANORUN_BUILD": str(Path(small_run.PROGRAM).parents[1]),
            "OMPI_MCA_mpi_yield_when_idle": "1",  # there may be more ranks than cores
        }

    def prepare(self, folder):
        super().prepare(folder)
        (folder / "jobscripts").symlink_to(REPOSITORY / "jobscripts")

    def submit(self, script, *arguments, options=(), folder=None):
        """Submits a job script and returns the job's number."""
        output = self.slurm.command("sbatch", "--parsable", *options, f"jobscripts/{script}", *arguments,
                                    folder=folder or self.folder)
        self.assertRegex(output, r"^\d+\n$")
        return output.strip()

    def submit_training(self, *overrides, options=(), folder=None):
        options = ("--ntasks-per-node=2", *options)
        return self.submit("train.sbatch", "deck.toml", *overrides, options=options, folder=folder)

    def log(self, name="run"):
        """What the run has logged, over all its jobs."""
        path = self.folder / "outputs" / name / "log.txt"
        return path.read_text() if path.exists() else ""

    def output(self):
        """What the job scripts and srun have printed."""
        return "".join(path.read_text() for path in sorted(self.folder.rglob("*.out")))

    def until(self, condition, what):
        try:
            return self.slurm.until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- output\n{self.output()}") from None

    def until_step(self, step, name="run"):
        self.until(lambda: re.search(rf"^step +{step}/", self.log(name), re.MULTILINE), f"step {step}")

    def until_over(self, job, state):
        """Waits until the job has ended, and checks how. Returns what Slurm says about it."""
        self.until(lambda: self.slurm.job(job).get("JobState") in OVER, "end of the job")
        end = self.slurm.job(job)
        self.assertEqual(end["JobState"], state, self.output())
        return end

    def until_requeued(self, job):
        """Waits until the job is back in the queue, and gives it the time to finish."""
        self.until(lambda: self.slurm.job(job).get("JobState") == "PENDING", "requeued job")
        self.assertEqual(self.slurm.job(job)["Restarts"], "1")
        self.slurm.command("scontrol", "update", f"JobId={job}", "TimeLimit=10")

    def rank_pids(self, job):
        pids = self.slurm.pids(f"{job}.0")
        self.assertEqual(len(pids), 2, pids)
        return pids

    def stopped_at(self, reason, name="run"):
        """The step at which the run stopped, once, for the given reason."""
        steps = re.findall(rf"stopped at step (\d+): {reason};", self.log(name))
        self.assertEqual(len(steps), 1, self.log(name))
        return int(steps[0])

    def saved_step(self):
        """The step of the newest checkpoint, 0 without one."""
        names = [path.stem for path in self.folder.glob("outputs/run/checkpoints/*.h5")]
        return max((int(name.split("_")[1]) for name in names), default=0)


class Jobs(SlurmTest):
    def test_completes(self):
        end = self.until_over(self.submit_training(), "COMPLETED")
        self.assertEqual(end["ExitCode"], "0:0")
        self.assertEqual(self.summary()["ranks"], 2)
        self.assertTrue(self.summary()["finished"])
        self.assertIn("FOM final_val_loss", self.output())

    def test_bad_deck_fails(self):
        end = self.until_over(self.submit_training("train.step=3"), "FAILED")
        self.assertEqual(end["ExitCode"], "2:0")
        self.assertIn("train.step", self.output())

    def hold_until_signal(self, job):
        """Lets the ranks rest until Slurm signals them, which it does at the next of its looks every 30 seconds."""
        ranks = self.rank_pids(job)
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        self.until(lambda: all(status(pid)[0] == "T" for pid in ranks), "resting ranks")
        # The signal waits, or Slurm has woken the ranks to receive it.
        self.until(lambda: all(status(pid) != ("T", 0) for pid in ranks), "signal")
        for pid in ranks:
            if status(pid):
                os.kill(pid, signal.SIGCONT)

    def test_time_limit_requeues_and_continues_bit_exact(self):
        whole = self.folder / "whole"
        self.prepare(whole)
        self.until_over(self.submit_training("train.steps=200", folder=whole), "COMPLETED")
        job = self.submit_training("train.steps=200", options=("--time=1", "--signal=USR2@30"))
        self.until_step(3)
        self.hold_until_signal(job)
        self.until_requeued(job)
        self.until_over(job, "COMPLETED")
        step = self.stopped_at("SIGUSR2 received")
        self.assertIn(f"restarted from the checkpoint of step {step}\n", self.log())
        for key in ("final_train_loss", "final_val_loss", "tokens", "steps"):
            self.assertEqual(self.summary()[key], self.summary(whole)[key], key)
        # The attributes say when, where and how long; what was trained is equal.
        self.assertEqual(self.datasets(self.checkpoint(200)), self.datasets(self.checkpoint(200, whole)))

    def datasets(self, path):
        """The bytes of each dataset of a checkpoint, by name."""
        found = {}
        with h5py.File(path) as file:
            file.visititems(lambda name, item: found.update({name: item[()].tobytes()})
                            if isinstance(item, h5py.Dataset) else None)
        self.assertGreater(len(found), 10)
        return found

    def test_cancelled_job_leaves_a_checkpoint(self):
        job = self.submit_training(LONG)
        self.until_step(3)
        self.slurm.command("scancel", job)
        self.assertEqual(self.until_over(job, "CANCELLED")["Restarts"], "0")
        self.until(lambda: "stopped at step" in self.log(), "end of the ranks")
        step = self.stopped_at("SIGTERM received")
        self.assertEqual(self.files(), [self.checkpoint(step).name])
        self.verify(self.checkpoint(step))
        self.assertEqual(self.slurm.job(job)["JobState"], "CANCELLED")

    def test_job_that_is_not_to_be_requeued_ends_with_a_checkpoint(self):
        self.slurm.environment |= {"SLURM_LABELIO": "1"}
        job = self.submit_training(LONG)
        self.until_step(3)
        self.slurm.command("scontrol", "update", f"JobId={job}", "Requeue=0")
        self.slurm.command("scancel", "--signal=USR2", job)
        end = self.until_over(job, "FAILED")
        self.assertEqual((end["Restarts"], end["ExitCode"]), ("0", "75:0"))
        self.assertIn(f"job {job} could not be queued again\n", self.output())
        step = self.stopped_at("SIGUSR2 received")
        self.assertIn(f"0: checkpoint {self.checkpoint(step).relative_to(self.folder)}\n", self.output())
        record = self.folder / f"nanorun-{job}.checkpoint"
        self.assertEqual(record.read_text(), f"{self.checkpoint(step).relative_to(self.folder)}\n")

    def test_killed_rank_fails_the_job(self):
        job = self.submit_training("train.steps=200", "checkpoint.every=10")
        self.until(self.saved_step, "checkpoint")
        os.kill(self.rank_pids(job)[1], signal.SIGKILL)
        self.assertEqual(self.until_over(job, "FAILED")["Restarts"], "0")
        self.assertRegex(self.output(), r"srun: error: \S+: task \d: Killed")
        step = self.saved_step()
        self.assertLess(step, 200)
        self.until_over(self.submit_training("train.steps=200", "checkpoint.every=10"), "COMPLETED")
        self.assertIn(f"restarted from the checkpoint of step {step}\n", self.log())
        self.assertTrue(self.summary()["finished"])

    def test_node_down_requeues(self):
        job = self.submit_training("train.steps=200", "checkpoint.every=10")
        self.until(self.saved_step, "checkpoint")
        self.slurm.lose_node(job)
        self.until_requeued(job)
        self.until_over(job, "COMPLETED")
        self.assertRegex(self.log(), r"restarted from the checkpoint of step \d+\n")
        self.assertTrue(self.summary()["finished"])

    def test_deck_that_begins_anew_does_so_once(self):
        """Beside an older run of the name: the words hold on the first start, and no longer once the job continues."""
        self.until_over(self.submit_training("train.steps=5"), "COMPLETED")
        job = self.submit_training("train.steps=200", "checkpoint.restart=none")
        self.until((self.folder / "outputs" / "run.1").exists, "directory set aside")
        self.until_step(3)
        self.slurm.command("scancel", "--signal=USR2", job)
        self.until_requeued(job)
        self.until_over(job, "COMPLETED")
        step = self.stopped_at("SIGUSR2 received")
        self.assertIn(f"restarted from the checkpoint of step {step}\n", self.log())
        self.assertTrue(self.summary()["finished"])
        self.assertEqual(sorted(path.name for path in (self.folder / "outputs").iterdir()), ["run", "run.1"])
        self.assertEqual(list(self.folder.glob("nanorun-*.checkpoint")), [])

    def test_node_down_before_a_checkpoint_begins_as_told(self):
        self.until_over(self.submit_training("train.steps=5"), "COMPLETED")
        job = self.submit_training("train.steps=200", "checkpoint.restart=none")
        self.until((self.folder / "outputs" / "run.1").exists, "directory set aside")
        self.until_step(3)
        self.slurm.lose_node(job)
        self.until_requeued(job)
        self.until_over(job, "COMPLETED")
        self.assertNotIn("restarted", self.log())
        self.assertTrue(self.summary()["finished"])
        self.assertEqual(sorted(path.name for path in (self.folder / "outputs").iterdir()), ["run", "run.1", "run.2"])

    def test_submitted_from_elsewhere(self):
        """After site.sh has been sourced, by the path of the script."""
        (self.folder / "jobscripts").unlink()
        self.slurm.environment |= {"NANORUN_JOBSCRIPTS": str(REPOSITORY / "jobscripts")}
        output = self.slurm.command("sbatch", "--parsable", "--ntasks-per-node=2",
                                    REPOSITORY / "jobscripts" / "train.sbatch", "deck.toml", folder=self.folder)
        self.until_over(output.strip(), "COMPLETED")
        self.assertTrue(self.summary()["finished"])

    def test_array_is_an_ensemble(self):
        job = self.submit("ensemble.sbatch", "deck.toml", "small", "train.steps=100",
                          options=("--array=1-3", "--ntasks-per-node=1"))
        self.until_step(3, "small_2")
        self.slurm.command("scancel", "--signal=USR2", f"{job}_2")
        self.until_requeued(f"{job}_2")
        for task in (1, 2, 3):
            self.until_over(f"{job}_{task}", "COMPLETED")
        self.assertIn(f"restarted from the checkpoint of step {self.stopped_at('SIGUSR2 received', 'small_2')}\n",
                      self.log("small_2"))
        folders = [f"outputs/small_{task}" for task in (1, 2, 3)]
        losses = [self.summary_of(folder)["final_val_loss"] for folder in folders]
        self.assertEqual(len(set(losses)), 3)
        self.check_table(folders, losses)

    def test_sweep(self):
        """Two learning rates with two seeds; one run is there already. The last task makes the page."""
        self.slurm.environment |= {"PATH": f"{Path(sys.executable).parent}:{self.slurm.environment['PATH']}"}
        (self.folder / "sweep.toml").write_text(
            'deck = "deck.toml"\nname = "lr"\nseeds = [1, 2]\ntarget = 5\n'
            '[grid]\n"optimizer.muon_lr" = [0.05, 0.1]\n"train.steps" = [8]\n')
        options = ("--ntasks-per-node=1",)
        first = self.submit("sweep.sbatch", "sweep.toml", options=("--array=3", *options))
        self.until_over(f"{first}_3", "COMPLETED")
        job = self.submit("sweep.sbatch", "sweep.toml", options=("--array=1-4", *options))
        for task in (1, 2, 3, 4):
            self.until_over(f"{job}_{task}", "COMPLETED")
        self.assertIn("lr_0.1_1 has finished\n", self.output())
        self.assertEqual(self.log("lr_0.1_1").count("output in "), 1)
        page = (self.folder / "outputs" / "lr.html").read_text()
        for name in ("lr_0.05_1", "lr_0.05_2", "lr_0.1_1", "lr_0.1_2"):
            self.assertEqual(self.summary_of(f"outputs/{name}")["steps"], 8)
            self.assertIn(f">{name}<", page)
        self.assertIn("Comparison of 4 runs", page)

    def summary_of(self, folder):
        return json.loads((self.folder / folder / "summary.json").read_text())

    def check_table(self, folders, losses):
        table = subprocess.run([sys.executable, REPOSITORY / "jobscripts/tools/ensemble.py", *folders], cwd=self.folder,
                               stdout=subprocess.PIPE, text=True, check=True).stdout
        rows = {line.split()[0]: line.split()[-3] for line in table.splitlines()[:-1]}
        expected = {str(seed): loss for seed, loss in enumerate(losses, 1)}
        expected |= {"mean": statistics.mean(losses), "deviation": statistics.stdev(losses)}
        for name, value in expected.items():
            self.assertEqual(rows[name], f"{value:.5f}", table)

    def test_ranks_see_all_gpus_of_their_node(self):
        program = self.folder / "bin" / "nanorun"
        program.parent.mkdir()
        program.write_text('#!/bin/sh\necho "rank $SLURM_PROCID of $SLURM_NTASKS: GPUs $CUDA_VISIBLE_DEVICES"\n')
        program.chmod(0o755)
        self.slurm.environment |= {"NANORUN_BUILD": str(self.folder), "SBATCH_GPUS_PER_NODE": "2"}
        self.until_over(self.submit_training(), "COMPLETED")
        self.assertEqual(sorted(self.output().splitlines()), [f"rank {rank} of 2: GPUs 0,1" for rank in range(2)])

    def test_tests_run_in_a_job(self):
        self.until_over(self.submit("test.sbatch", "--tests-regex", "^includes$"), "COMPLETED")
        self.assertRegex(self.output(), "100% tests passed, 0 tests failed out of 1")


if __name__ == "__main__":
    if cluster.missing():
        print(f"skipped: {', '.join(cluster.missing())} not found; install slurmctld, slurmd, slurm-client and munge")
        sys.exit(77)
    cluster.end_on_signals()
    small_run.main()
