"""What the tests of the scaling studies share: the scripts, a deck, study files, and runs with known times."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "jobscripts"))

PROGRAM = MPIRUN = None

PHASES = ("data", "forward", "head", "backward", "reduce_gradients", "muon", "adam", "gather_weights", "agree",
          "validation", "checkpoint", "output", "other")
MODEL = {"vocabulary": 257, "width": 64, "heads": 2, "head_dim": 32, "layers": 4, "mlp_ratio": 4,
         "value_path": "embeddings", "value_embeddings": 1, "layers_without_attention": []}

DECK = """
[model]
vocabulary = 257
width = 32
heads = 2
head_dim = 16
layers = 4
value_embeddings = 1
[window]
first = 128
last = 128
[train]
length = 128
[data]
train = ["data.h5"]
end = "wrap"
"""

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
    """trace.h5 of times [steps, ranks, phases] and [steps, ranks], the latter absent in version 1."""
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
        if communication is not None:
            file["communication"] = communication
        file["validation_step"] = np.zeros(0, int)
        file["validation_loss"] = np.zeros(0)


def write_run(folder, seconds, tokens, communication=None):
    """The files of a finished run of the model MODEL."""
    folder.mkdir(parents=True)
    steps, ranks = seconds.shape[:2]
    (folder / "summary.json").write_text(json.dumps({"finished": True, "steps": steps, "ranks": ranks}))
    lines = [f"{key} = {json.dumps(value)}" for key, value in MODEL.items()]
    (folder / "deck.toml").write_text("[model]\n" + "\n".join(lines) + "\n")
    write_trace(folder / "trace.h5", seconds, tokens, communication)


class ScalingTest(unittest.TestCase):
    """Each test has a folder of its own, which is the current one, with a deck."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-scaling-")
        self.addCleanup(temporary.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        self.folder = Path(temporary.name)
        os.chdir(self.folder)
        (self.folder / "deck.toml").write_text(DECK)

    def write_study(self, **values):
        path = Path("study.toml")
        path.write_text(study_text(**values))
        return path

    def write_data(self):
        """data.h5, the shard of DECK."""
        words = random.Random(0).choices(["alpha", "beta", "gamma", "delta"], k=4000)
        Path("text.txt").write_text(" ".join(words))
        subprocess.run([MPIRUN, "-n", "1", PROGRAM, "shard", "data.h5", "text.txt", "--text"], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def script(self, *arguments, commands=None, code=0):
        """Runs scaling.py, which finds mpirun, or whatever `commands` holds, first; returns what it printed."""
        search = f"{commands or Path(MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"
        job = subprocess.run([sys.executable, "-B", str(ROOT / "jobscripts" / "scaling.py"), *map(str, arguments)],
                             env=os.environ | {"PATH": search}, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(job.returncode, code, job.stdout)
        return job.stdout


def main():
    """Runs the tests of the calling script: SCRIPT PROGRAM MPIRUN [unittest arguments]."""
    global PROGRAM, MPIRUN
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("mpirun")
    known, rest = parser.parse_known_args()
    support = sys.modules["support"]
    support.PROGRAM, support.MPIRUN = str(Path(known.program).resolve()), known.mpirun
    unittest.main(argv=[sys.argv[0], *rest])
