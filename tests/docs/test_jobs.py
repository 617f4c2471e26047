"""The jobs of docs/pbs_flux.md, with stubs for what the batch system gives: they start the program that they name, and
submit themselves again when it stops early.

Usage: test_jobs.py PROGRAM MPIRUN.
"""

import subprocess
import tempfile
import unittest
from pathlib import Path

from commands import dry_run, small_run
from pages import ROOT, blocks

STUB = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0") $*" >>"$STUBS/calls"
case "$(basename "$0") $*" in
  "flux job timeleft") echo 3600 ;;
  *" train "*) exit "$CODE" ;;
esac
"""


class Jobs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-jobs-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "jobscripts").symlink_to(ROOT / "jobscripts")
        self.stubs = self.folder / "stubs"
        self.stubs.mkdir()
        for name in ("mpirun", "flux", "qsub"):
            (self.stubs / name).write_text(STUB)
            (self.stubs / name).chmod(0o755)

    def run_job(self, batch, code):
        """What the job of `#BATCH` lines calls when the ranks end with this code, which the job ends with too."""
        [job] = [text for _, text in blocks((ROOT / "docs" / "pbs_flux.md").read_text()) if f"\n#{batch}" in text]
        (self.stubs / "calls").unlink(missing_ok=True)
        # As qsub starts it: with none of the variables of the shell that has called it.
        done = subprocess.run(["bash", "-c", job], cwd=self.folder, text=True, capture_output=True, env={
            "PATH": f"{self.stubs}:/usr/bin:/bin", "HOME": str(self.folder), "PBS_O_WORKDIR": str(self.folder),
            "STUBS": str(self.stubs), "CODE": str(code)})
        self.assertEqual(done.returncode, code, done.stderr)
        return [line.split() for line in (self.stubs / "calls").read_text().splitlines()]

    def check(self, batch, launcher, again):
        for code in (0, 2, 75):
            calls = self.run_job(batch, code)
            started = [call for call in calls if "train" in call]
            self.assertEqual([call[:len(launcher)] for call in started], [launcher])
            at = started[0].index("train")
            # It asks for GPUs, so that the build is one for them.
            self.assertEqual(started[0][at - 1], str(self.folder / "build" / "h100" / "bin" / "nanorun"))
            dry_run(started[0][at:], 8)
            self.assertEqual([call for call in calls if call == again], [again] if code == 75 else [])

    def test_pbs(self):
        self.check("PBS", ["mpirun", "-n", "8"], ["qsub", "train.pbs"])

    def test_flux(self):
        self.check("flux", ["flux", "run", "--nodes=2", "--tasks-per-node=4"], ["flux", "batch", "train.flux"])


if __name__ == "__main__":
    small_run.main()
