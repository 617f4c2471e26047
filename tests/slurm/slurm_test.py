"""What the tests under a private Slurm share: jobs, and what they wait for."""

import re
import shutil
import sys
from pathlib import Path

import cluster
import h5py

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "fault"))
from harness import FaultTest, small_run  # noqa: E402

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
LONG = "train.steps=100000"


class SlurmTest(FaultTest):
    """Jobs are submitted from the test's directory, which has the job scripts and the build of the repository."""

    cluster_type, cluster_options = cluster.Cluster, {}  # with these arguments

    def setUp(self):
        super().setUp()
        self.slurm = self.cluster_type(**self.cluster_options)
        self.addCleanup(self.slurm.stop)
        self.slurm.environment |= {
            "NANORUN_BUILD": str(Path(small_run.PROGRAM).parents[1]),
            "OMPI_MCA_mpi_yield_when_idle": "1",  # there may be more ranks than cores
        }

    def prepare(self, folder):
        super().prepare(folder)
        (folder / "jobscripts").symlink_to(REPOSITORY / "jobscripts")

    def copy_scripts(self, site):
        """Job scripts of the test's own; `site` are further lines of site.sh."""
        (self.folder / "jobscripts").unlink()
        shutil.copytree(REPOSITORY / "jobscripts", self.folder / "jobscripts")
        with open(self.folder / "jobscripts" / "site.sh", "a") as file:
            file.write(site)

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

    def restarts(self, *jobs):
        """How often Slurm has started each of the jobs again."""
        return [int(self.slurm.job(job)["Restarts"]) for job in jobs]

    def until_requeued(self, job):
        """Waits until the job is back in the queue, and gives it the time to finish."""
        self.until(lambda: self.slurm.job(job).get("JobState") == "PENDING", "requeued job")
        self.assertEqual(self.restarts(job), [1])
        self.slurm.command("scontrol", "update", f"JobId={job}", "TimeLimit=10")

    def write_program(self, text):
        """A shell script in the place of the program."""
        program = self.folder / "bin" / "nanorun"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)
        self.slurm.environment |= {"NANORUN_BUILD": str(self.folder)}

    def rank_pids(self, job):
        pids = self.slurm.pids(f"{job}.0")
        self.assertEqual(len(pids), 2, pids)
        return pids

    def stopped_at(self, reason, name="run"):
        """The step at which the run stopped, once, for the given reason."""
        steps = re.findall(rf"stopped at step (\d+): {reason};", self.log(name))
        self.assertEqual(len(steps), 1, self.log(name))
        return int(steps[0])

    def assert_equal_runs(self, whole, unlike=()):
        """The run has come to the same end as that in another folder, bit for bit. `unlike` are datasets of the
        checkpoints that differ."""
        for key in ("final_train_loss", "final_val_loss", "tokens", "steps"):
            self.assertEqual(self.summary()[key], self.summary(whole)[key], key)
        # The attributes say when, where and how long; what was trained is equal.
        step = self.summary()["steps"]
        here, there = self.datasets(self.checkpoint(step)), self.datasets(self.checkpoint(step, whole))
        self.assertEqual(here.keys(), there.keys())
        self.assertEqual([name for name in here if here[name] != there[name]], list(unlike))

    def datasets(self, path):
        """The bytes of each dataset of a checkpoint, by name."""
        found = {}
        with h5py.File(path) as file:
            file.visititems(lambda name, item: found.update({name: item[()].tobytes()})
                            if isinstance(item, h5py.Dataset) else None)
        self.assertGreater(len(found), 10)
        return found

    def saved_step(self):
        """The step of the newest checkpoint, 0 without one."""
        names = [path.stem for path in self.folder.glob("outputs/run/checkpoints/*.h5")]
        return max((int(name.split("_")[1]) for name in names), default=0)


def main():
    """Runs the tests of the calling script, or says that there is no Slurm."""
    if cluster.missing():
        print(f"skipped: {', '.join(cluster.missing())} not found; install slurmctld, slurmd, slurm-client and munge")
        sys.exit(77)
    cluster.end_on_signals()
    small_run.main()
