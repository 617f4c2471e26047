"""The job scripts under a real Slurm: ends, time limits, cancelled jobs, dying ranks and nodes, job arrays."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from slurm_test import LONG, REPOSITORY, SlurmTest, main

def status(pid):
    """State of a process, such as T for stopped, and the mask of its pending signals; None once it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = dict(re.findall(r"^(\w+):\s*(\w+)", text, re.MULTILINE))
    return fields["State"], int(fields["ShdPnd"], 16)


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
        self.assert_equal_runs(whole)

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
        self.assertIn(f"job {job} may not be requeued (Requeue=0 in its record, ", self.output())
        self.assertNotIn("goes back to the queue", self.output())
        step = self.stopped_at("SIGUSR2 received")
        self.assertIn(f"0: checkpoint {self.checkpoint(step).relative_to(self.folder)}\n", self.output())
        record = self.folder / f"nanorun-{job}.checkpoint"
        self.assertEqual(record.read_text(), f"{self.checkpoint(step).relative_to(self.folder)}\n")

    def test_killed_rank_requeues(self):
        job = self.submit_training("train.steps=200", "checkpoint.every=10")
        self.until(self.saved_step, "checkpoint")
        os.kill(self.rank_pids(job)[1], signal.SIGKILL)
        self.until_requeued(job)
        step = self.saved_step()
        self.assertLess(step, 200)
        self.until_over(job, "COMPLETED")
        self.assertEqual(self.restarts(job), [1])
        self.assertRegex(self.output(), r"srun: error: \S+: task \d: Killed")
        self.assertIn(f"job {job} goes back to the queue, 1 of at most 3 times in a row without a new checkpoint: "
                      "a rank was ended by signal 9\n", self.output())
        self.assertIn(f"restarted from the checkpoint of step {step}\n", self.log())
        self.assertTrue(self.summary()["finished"])
        self.assertEqual(list(self.folder.glob("nanorun-*.*")), list(self.folder.glob("nanorun-*.out")))

    def test_failing_job_is_requeued_as_often_as_told(self):
        self.write_program('echo "start ${SLURM_RESTART_COUNT}"; exit 6\n')
        job = self.submit_training(options=("--export=ALL,requeue_at_most=1",))
        end = self.until_over(job, "FAILED")
        self.assertEqual((end["Restarts"], end["ExitCode"]), ("1", "6:0"))
        self.assertIn(f"job {job} is not requeued, after 1 of at most 1 times in a row without a new checkpoint "
                      "(requeue_at_most in site.sh): a rank died, hung or did not answer\n", self.output())

    def test_ends_of_the_program_end_the_job(self):
        self.write_program('exit "$2"\n')
        codes = (1, 3, 7)
        jobs = [self.submit("train.sbatch", code, options=("--ntasks-per-node=1",)) for code in codes]
        for code, job in zip(codes, jobs):
            end = self.until_over(job, "FAILED")
            self.assertEqual((end["Restarts"], end["ExitCode"]), ("0", f"{code}:0"))
        self.assertNotIn("requeue", self.output())

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

    def test_array_requeues_the_task_that_stops(self):
        """Whatever its place: the number of the last task is that of the array."""
        self.write_program("trap 'exit 75' USR2; touch started_$SLURM_ARRAY_TASK_ID; while :; do sleep 0.1; done\n")
        job = self.submit("ensemble.sbatch", "deck.toml", "small", options=("--array=1-3", "--ntasks-per-node=1"))
        tasks = [f"{job}_{task}" for task in (1, 2, 3)]
        for task in (1, 2, 3):
            self.until((self.folder / f"started_{task}").exists, "running task")
        self.assertEqual(self.slurm.job(tasks[2])["JobId"], job)
        expected = [0, 0, 0]
        for task in (3, 1, 2):
            self.slurm.command("scancel", "--signal=USR2", tasks[task - 1])
            self.until(lambda: f"job {tasks[task - 1]} stopped with a checkpoint" in self.output(), "stopped task")
            self.until(lambda: sum(self.restarts(*tasks)) > sum(expected), "requeued task")
            expected[task - 1] += 1
            self.assertEqual(self.restarts(*tasks), expected)
        self.slurm.command("scancel", job)

    def test_plain_job_with_the_variables_of_an_array(self):
        self.write_program("trap 'exit 75' USR2; touch started_$2; while :; do sleep 0.1; done\n")
        array = self.submit("train.sbatch", "array", options=("--array=4-5", "--ntasks-per-node=1"))
        self.until((self.folder / "started_array").exists, "running array")
        self.slurm.environment |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": "4", "SLURM_RESTART_COUNT": "1"}
        job = self.submit("train.sbatch", "plain", options=("--ntasks-per-node=1",))
        self.until((self.folder / "started_plain").exists, "running job")
        self.slurm.command("scancel", "--signal=USR2", job)
        self.until(lambda: self.restarts(job) == [1], "requeued job")
        self.assertIn(f"job {job} stopped with a checkpoint and goes back to the queue\n", self.output())
        for task in (4, 5):
            other = self.slurm.job(f"{array}_{task}")
            self.assertEqual((other["Restarts"], other["JobState"]), ("0", "RUNNING"))

    def test_ranks_get_what_the_site_sets(self):
        """After --export=NONE, and with what an outer job leaves in the environment."""
        self.copy_scripts(f"export SITE_LIBRARY=/opt/site nanorun={self.folder}/bin/nanorun\n")
        self.write_program('echo "rank $SLURM_PROCID of $SLURM_NTASKS: $SITE_LIBRARY, $SLURM_CPUS_PER_TASK processors, '
                           'GPUs $CUDA_VISIBLE_DEVICES, $(command -v env)"\n')
        outer = {"SLURM_CPUS_PER_TASK": "4", "SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_NTASKS_PER_NODE": "1",
                 "SLURM_TASKS_PER_NODE": "1", "SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_NODE": "200",
                 "SLURM_GPUS": "1", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_EXPORT_ENV": "NONE", "SLURM_MPI_TYPE": "none",
                 "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1", "SRUN_EXPORT_ENV": "NONE", "SRUN_CPUS_PER_TASK": "7"}
        before = self.slurm.environment
        for variables, options in (({}, ("--export=NONE",)), (outer, ()), (outer, ("--export=NONE",))):
            for script, argument in (("train.sbatch", "deck.toml"), ("scaling.sbatch", self.folder / "bin/nanorun")):
                with self.subTest(variables=variables, options=options, script=script):
                    self.slurm.environment = before | variables
                    job = self.submit(script, argument, options=(
                        "--ntasks-per-node=2", "--exclusive", "--gres=gpu:2", f"--output={script}.out",
                        "--open-mode=truncate", *options))
                    self.slurm.environment = before
                    self.until_over(job, "COMPLETED")
                    said = (self.folder / f"{script}.out").read_text().splitlines()
                    found = f"/opt/site, 2 processors, GPUs 0,1, {shutil.which('env')}"
                    self.assertEqual(sorted(said), [f"rank {rank} of 2: {found}" for rank in range(2)])

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
        self.write_program('echo "rank $SLURM_PROCID of $SLURM_NTASKS: GPUs $CUDA_VISIBLE_DEVICES"\n')
        self.slurm.environment |= {"SBATCH_GPUS_PER_NODE": "2"}
        self.until_over(self.submit_training(), "COMPLETED")
        self.assertEqual(sorted(self.output().splitlines()), [f"rank {rank} of 2: GPUs 0,1" for rank in range(2)])

    def test_tests_run_in_a_job(self):
        self.until_over(self.submit("test.sbatch", "--tests-regex", "^includes$"), "COMPLETED")
        self.assertRegex(self.output(), "100% tests passed, 0 tests failed out of 1")


if __name__ == "__main__":
    main()
