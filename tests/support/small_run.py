"""What the tests that run the program share: a small deck, its token shard, and the arguments of a test script.
Standard library only."""

import argparse
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

import deadline

PROGRAM = MPIRUN = None

DECK = """
[run]
log_every = 1
[model]
vocabulary = 257
width = 32
heads = 2
head_dim = 16
layers = 4
value_embeddings = 1
[window]
first = 128
last = 256
[train]
steps = 12
sequences = 4
length = 256
[validation]
every = 0
tokens = 1024
length = 256
[data]
train = ["data.h5"]
validation = ["data.h5"]
end = "wrap"
"""


def write_deck(folder):
    """deck.toml."""
    (folder / "deck.toml").write_text(DECK)


def write_data(folder, seed=0):
    """data.h5, the shard of DECK, and the texts 00.txt to 19.txt that it is made from."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 8))) for _ in range(200)]
    texts = [f"{i:02}.txt" for i in range(20)]
    for text in texts:
        (folder / text).write_text(" ".join(draw.choices(words, k=400)))
    job = deadline.run([PROGRAM, "shard", "data.h5", *texts, "--text", "--force"], 60, cwd=folder,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.returncode == 0, job.stdout


def build_facts():
    """What `nanorun info` says, by the first words of its lines; of several models of GPUs, the last."""
    job = deadline.run([PROGRAM, "info"], 60, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert job.returncode == 0, job.stdout
    return dict(line.split(maxsplit=1) for line in job.stdout.splitlines())


class Loader(unittest.TestLoader):
    """Leaves out the tests that NANORUN_LEFT_OUT names, Class.test_name, separated by blanks."""

    def getTestCaseNames(self, case):
        left_out = os.environ.get("NANORUN_LEFT_OUT", "").split()
        return [name for name in super().getTestCaseNames(case) if f"{case.__name__}.{name}" not in left_out]


def main():
    """Runs the tests of the calling script: SCRIPT PROGRAM MPIRUN [unittest arguments]."""
    global PROGRAM, MPIRUN
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    parser.add_argument("mpirun")
    known, rest = parser.parse_known_args()
    PROGRAM, MPIRUN = str(known.program.resolve()), known.mpirun
    unittest.main(argv=[sys.argv[0], *rest], testLoader=Loader())
