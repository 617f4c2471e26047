"""What the tests of a measured node share: its script, on a small deck and ranks of this machine in place of GPUs."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support import ROOT, ScalingTest, small_run

SCRIPT = ROOT / "jobscripts" / "measure_node.sh"
PASSING = "#!/usr/bin/env bash\n[[ $1 == --gtest_color=no ]] && echo '[  PASSED  ] 3 tests.'\n"
# Ranks leave the cores to other tests while they wait.
SHARED_CORES = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def steps_of(folder):
    """The steps in metrics.jsonl of a run."""
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


class MeasuredNode(ScalingTest):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-shard-")
        cls.addClassCleanup(temporary.cleanup)
        cls.shard = Path(temporary.name) / "data.h5"
        small_run.write_data(cls.shard.parent)

    def setUp(self):
        super().setUp()
        Path("shards").mkdir()
        for kind in ("train", "val"):
            shutil.copy(self.shard, f"shards/{kind}.h5")
        Path("bin").mkdir()
        self.program = self.folder / "bin" / "nanorun"
        self.program.symlink_to(small_run.PROGRAM)
        self.path = f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"

    def stub(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def measure(self, *arguments, code=0, **variables):
        """Exit code is `code`; returns standard output and standard error."""
        job = subprocess.run([SCRIPT, "--program", self.program, "--deck", "deck.toml", "--data", "shards", "--out",
                              "out", *map(str, arguments)], text=True, stdin=subprocess.DEVNULL, capture_output=True,
                             env=os.environ | SHARED_CORES | {"PATH": self.path} | variables)
        self.assertEqual(job.returncode, code, job.stdout + job.stderr)
        return job.stdout, job.stderr

    def rows(self, table):
        """Cells by heading of each row, by deck, part, run and ranks."""
        return {tuple(row.values())[:4]: row for row in self.cells(table.partition("\n## ")[0])}

    def cells(self, table):
        """Cells by heading of each row."""
        heading, _, *lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
                              if line.startswith("|")]
        self.assertEqual({len(line) for line in lines}, {len(heading)})
        return [dict(zip(heading, line)) for line in lines]
