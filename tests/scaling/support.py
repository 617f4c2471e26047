"""What the tests of the scaling studies share: the scripts, a deck, study files, and runs with known times."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "jobscripts" / "tools"
sys.path[:0] = [str(TOOLS), str(ROOT / "tests" / "support")]
import small_run  # noqa: E402

PHASES = ("data", "forward", "head", "backward", "reduce_gradients", "muon", "adam", "gather_weights", "sync",
          "validation", "checkpoint", "output", "other")
MODEL = {"vocabulary": 257, "width": 64, "heads": 2, "head_dim": 32, "layers": 4, "mlp_ratio": 4,
         "value_path": "embeddings", "value_embeddings": 1, "layers_without_attention": []}

STUDY = """
[study]
name = "{name}"
kind = "{kind}"
deck = "deck.toml"
ranks = {ranks}
sequences = {sequences}
steps = {steps}
warmup = {warmup}
repeats = {repeats}
machine = "a test"
{more}
"""


def study_text(name="test", kind="strong", ranks=(1, 2), sequences=4, steps=4, warmup=1, repeats=1, more=""):
    return STUDY.format(name=name, kind=kind, ranks=list(ranks), sequences=sequences, steps=steps, warmup=warmup,
                        repeats=repeats, more=more)


def write_trace(path, seconds, tokens, communication=None):
    """trace.h5 of times [steps, ranks, phases] and, where there is communication, [steps, ranks]."""
    import h5py
    import numpy as np

    steps, ranks = seconds.shape[:2]
    with h5py.File(path, "w") as file:
        file.attrs["phases"] = ",".join(PHASES)
        file["step"] = np.arange(steps)
        file["ranks"] = np.full(steps, ranks)
        file["tokens"] = np.full(steps, float(tokens))
        file["loss"] = np.ones(steps)
        file["seconds"] = seconds
        file["communication"] = np.zeros((steps, ranks)) if communication is None else communication
        file["validation_step"] = np.zeros(0, int)
        file["validation_loss"] = np.zeros(0)


def write_run(folder, seconds, tokens, communication=None, **summary):
    """The files of a finished run of the model MODEL; `summary`: what summary.json says further."""
    folder.mkdir(parents=True)
    steps, ranks = seconds.shape[:2]
    (folder / "summary.json").write_text(json.dumps({"finished": True, "steps": steps, "ranks": ranks} | summary))
    lines = [f"{key} = {json.dumps(value)}" for key, value in MODEL.items()]
    others = '[train]\nlength = 512\n[optimizer]\nadam_period = 1\n[comm]\ngradients = "bf16"\n'
    (folder / "deck.toml").write_text("[model]\n" + "\n".join(lines) + "\n" + others)
    write_trace(folder / "trace.h5", seconds, tokens, communication)


class ScalingTest(unittest.TestCase):
    """Each test has a directory of its own, which is the current one, with a deck."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-scaling-")
        self.addCleanup(temporary.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        self.folder = Path(temporary.name)
        os.chdir(self.folder)
        small_run.write_deck(self.folder)

    def write_study(self, **values):
        path = Path("study.toml")
        path.write_text(study_text(**values))
        return path

    def script(self, *arguments, commands=None, code=0):
        """Runs scaling_study.py, which finds mpirun, or whatever `commands` holds, first; returns what it printed."""
        search = f"{commands or Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"
        job = subprocess.run([sys.executable, "-B", TOOLS / "scaling_study.py", *map(str, arguments)],
                             env=os.environ | {"PATH": search}, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(job.returncode, code, job.stdout)
        return job.stdout
