"""What the tests of the job scripts without Slurm share: stubs of its commands, and a job that starts a script."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
JOBSCRIPTS = REPOSITORY / "jobscripts"
sys.path.append(str(REPOSITORY / "tests" / "support"))
import small_run  # noqa: E402

# Records its arguments, and does what the file `ranks` says in place of the ranks.
SRUN = """#!/usr/bin/env bash
[[ $1 != --mpi=list ]] || exec echo "MPI plugin types are... none pmi2 pmix"
printf '%s\\0' "$@" >"$STUBS/arguments"
env -0 >"$STUBS/environment"
source "$STUBS/ranks"
"""
# Shows what the files `job` and `node` hold, and records what changes a job.
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then
  cat "$STUBS/$2" 2>/dev/null
  exit
fi
echo "$*" >>"$STUBS/scontrol.calls"
"""
# Shows what the file `partitions` holds.
SINFO = """#!/usr/bin/env bash
cat "$STUBS/partitions" 2>/dev/null
"""
CHECKPOINT = "echo 'checkpoint outputs/run/checkpoints/checkpoint_00000250.h5'"


class Script(unittest.TestCase):
    """Scripts run as Slurm runs them: a copy in a directory of its own, started where the job was submitted."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-scripts-")
        self.addCleanup(temporary.cleanup)
        self.top = Path(temporary.name).resolve()
        self.stubs, self.spool, self.folder = (self.top / name for name in ("stubs", "spool", "work"))
        for folder in (self.stubs, self.spool, self.folder):
            folder.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sinfo", SINFO)):
            (self.stubs / name).write_text(text)
            (self.stubs / name).chmod(0o755)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("SLURM", "SBATCH", "SRUN", "NANORUN"))}
        self.environment |= {
            "PATH": f"{self.stubs}:{os.environ['PATH']}", "STUBS": str(self.stubs), "NANORUN_SITE": "/dev/null", "SLURM_JOB_ID": "7",
            "SLURM_ARRAY_TASK_ID": "3", "SLURM_SUBMIT_DIR": str(self.folder),
            "NANORUN_JOBSCRIPTS": str(JOBSCRIPTS), "NANORUN_BUILD": str(Path(small_run.PROGRAM).parents[1]),
        }
        self.record = self.folder / "nanorun-7.checkpoint"

    def start(self, script, *arguments, ranks=":", restarts=None, **variables):
        """Starts a script from the spool directory; `ranks` is what happens in place of the job step."""
        (self.stubs / "ranks").write_text(ranks)
        (self.stubs / "arguments").unlink(missing_ok=True)
        (self.stubs / "scontrol.calls").unlink(missing_ok=True)
        copy = shutil.copy(script if isinstance(script, Path) else JOBSCRIPTS / script, self.spool / "slurm_script")
        environment = self.environment | variables
        if restarts is not None:
            environment["SLURM_RESTART_COUNT"] = str(restarts)
        return subprocess.Popen(["bash", copy, *arguments], cwd=self.folder, env=environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                start_new_session=True)

    def run_script(self, script, *arguments, code=0, **options):
        """What the script has printed."""
        job = self.start(script, *arguments, **options)
        output, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, code, output)
        return output

    def lose_node(self, script, *arguments, ranks, **options):
        """Kills the script and the ranks at once while the ranks are at work."""
        job = self.start(script, *arguments, ranks=f"{ranks}; touch $STUBS/at_work; sleep 20", **options)
        self.until_at_work(job)
        while "checkpoint" in ranks and not (self.record.exists() and self.record.read_text().endswith("\n")):
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        self.kill(job)
        (self.stubs / "at_work").unlink()

    def until_at_work(self, job):
        """Waits for the job step; kills all that has been started when there is none."""
        self.addCleanup(self.kill, job)
        while not (self.stubs / "at_work").exists():
            self.assertIsNone(job.poll(), "the script has ended")
            time.sleep(0.01)

    def kill(self, job):
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.wait()
        job.stdout.close()

    def training(self):
        """The arguments of nanorun that the job step had, from "train" on."""
        arguments = (self.stubs / "arguments").read_text().split("\0")[:-1]
        self.assertIn("train", arguments)
        return arguments[arguments.index("train"):]

    def requeued(self, job="7"):
        calls = self.stubs / "scontrol.calls"
        return calls.exists() and calls.read_text() == f"requeue incomplete {job}\n"
