"""The commands of docs/using.md work in their order after a quickstart, however short it was.

A command that names CHECKPOINT needs another model, and is not run. Usage: test_using.py PROGRAM MPIRUN.
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from commands import deadline, joined, small_run
from pages import ROOT, blocks

SECONDS = 600
SHORT = "train.steps=2 validation.tokens=8192"
SMALLER = {"train.steps=20": SHORT, "--tokens 700": "--tokens 20"}
RUN = ("checkpoint=", "build/cpu/bin/nanorun ", "mpirun ")


def commands():
    found = []
    for kind, text in blocks((ROOT / "docs" / "using.md").read_text()):
        if kind is None and text.startswith(RUN) and "CHECKPOINT" not in text:
            found += joined(text.splitlines())
    return found


class Using(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-using-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        for name in ("inputs", "docs", "README.md"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "build" / "cpu" / "bin").mkdir(parents=True)
        (self.folder / "build" / "cpu" / "bin" / "nanorun").symlink_to(small_run.PROGRAM)
        (self.folder / "outputs" / "quickstart-data").mkdir(parents=True)

    def run_all(self, script):
        done = deadline.run(["bash", "-euxc", "\n".join(script)], SECONDS, cwd=self.folder, text=True, errors="replace",
                            env=os.environ | {"PATH": f"{Path(small_run.MPIRUN).parent}:{os.environ['PATH']}"},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_after_a_quickstart(self):
        """What jobscripts/quickstart.sh leaves, with fewer steps and other text."""
        nanorun = "build/cpu/bin/nanorun"
        self.run_all([f"{nanorun} shard outputs/quickstart-data/train --text docs/*.md",
                      f"{nanorun} shard outputs/quickstart-data/val --text docs/keys.md",
                      f"mpirun -n 2 {nanorun} train inputs/quickstart.toml {SHORT}"])
        script = commands()
        self.assertLessEqual({"eval", "shard", "train", "sample", "export", "import"}, set(" ".join(script).split()))
        for long, short in SMALLER.items():
            self.assertIn(long, " ".join(script))
            script = [command.replace(long, short) for command in script]
        self.run_all(script)
        self.assertTrue(json.loads((self.folder / "outputs/tuned/summary.json").read_text())["finished"])
        for name in ("model/config.json", "model.h5"):
            self.assertTrue((self.folder / name).is_file(), name)


if __name__ == "__main__":
    small_run.main()
