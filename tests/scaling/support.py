"""What the tests of the scaling studies share: the scripts, a deck, study files, and runs with known times."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "jobscripts" / "tools"
sys.path[:0] = [str(TOOLS), str(ROOT / "tests" / "support")]
import deadline  # noqa: E402
import small_run  # noqa: E402
import tool  # noqa: E402
from study import plan  # noqa: E402
from study.study_file import read_study  # noqa: E402

PHASES = ("data", "forward", "head", "backward", "reduce_gradients", "muon", "adam", "gather_weights", "sync",
          "validation", "checkpoint", "output", "other")
MODEL = {"vocabulary": 257, "width": 64, "heads": 2, "head_dim": 32, "layers": 4, "mlp_ratio": 4,
         "value_path": "embeddings", "value_embeddings": 1, "layers_without_attention": []}

STEPS = 6  # steps of the run of a ToolsTest
SUMMARY = {"final_val_loss": 3.2, "final_train_loss": 3.1, "tokens_per_second": 1e6, "train_seconds": 9.5}

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


def write_trace(path, seconds, tokens, communication=None, between=None):
    """trace.h5 of times [steps, ranks, phases] and, where there is communication, [steps, ranks]. Without its part
    between nodes the file is as earlier programs wrote it."""
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
        if between is not None:
            file["communication_between"] = between
        file["validation_step"] = np.zeros(0, int)
        file["validation_loss"] = np.zeros(0)


SUMS = {"step": ("validation", "checkpoint"),
        "work": ("validation", "checkpoint", "reduce_gradients", "gather_weights", "sync"),
        "computing": ("validation", "checkpoint", "reduce_gradients", "gather_weights", "sync", "muon", "adam")}


def write_groups(path, seconds, tokens, communication, between, ranks_per_group):
    """trace.h5 as write_trace() writes it, but with a column for each group of ranks."""
    import h5py
    import numpy as np

    def of_groups(values, make):
        return np.stack([make(part, axis=1) for part in np.split(values, ranks // ranks_per_group, axis=1)], axis=1)

    steps, ranks = seconds.shape[:2]
    means = (of_groups(values, np.mean) for values in (seconds, communication, between))
    sums = [seconds[:, :, [i for i, name in enumerate(PHASES) if name not in left_out]].sum(axis=2)
            for left_out in SUMS.values()]
    every = np.concatenate([seconds, np.stack([communication, between, *sums], axis=2)], axis=2)
    first, second, third = means
    write_trace(path, first, tokens, second, third)
    with h5py.File(path, "a") as file:
        file.attrs["quantities"] = ",".join([*PHASES, "communication", "communication_between", *SUMS])
        file["ranks"][...] = ranks
        file["group_ranks"] = np.full(first.shape[:2], ranks_per_group, np.int32)
        quantiles = [of_groups(every, lambda part, axis, q=q: np.quantile(part, q, axis=axis))
                     for q in (0, 0.25, 0.5, 0.75, 1)]
        file["quantiles"] = np.stack(quantiles, axis=3).astype(np.float32)
        offsets = ranks_per_group * np.arange(first.shape[1])[None, :, None]
        file["slowest"] = (of_groups(every, np.argmax) + offsets).astype(np.int32)


@functools.cache
def planned(*words):
    """What the program plans for the model MODEL with overrides and options, as a dictionary."""
    keys = [f"model.{key}={json.dumps(value)}" for key, value in MODEL.items()]
    with tempfile.TemporaryDirectory(prefix="nanorun-plan-") as folder:
        small_run.write_deck(Path(folder))
        job = deadline.run([small_run.PROGRAM, "train", "deck.toml", "--dry-run", "--json", *keys, *words], 60,
                           cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout)


def plan_for(ranks, *words):
    """The study.plan.Plan of the model MODEL, one sequence a rank."""
    return plan.plan_of(planned("--ranks", str(ranks), f"train.sequences={ranks}", *words), "the plan")


def write_plans(study, *words):
    """plans.json of a study, for the model MODEL."""
    def table(ranks, size):
        nodes = ("--ranks-per-node", str(size)) if size else ()
        return planned("--ranks", str(ranks), f"train.sequences={ranks}", *words, *nodes) | {"refusal": ""}

    size = study.launch.ranks_per_node
    counts = plan.predicted_ranks(replace(study, sequences=study.prediction.sequences or study.sequences))
    plans = {"of": plan.subject(study), "measured": [table(n, size) for n in study.ranks],
             "predicted": [table(n, study.prediction.ranks_per_node or size) for n in counts]}
    (study.folder / plan.PLANS).write_text(json.dumps(plans))


def write_run(folder, seconds, tokens, communication=None, between=None, **summary):
    """The files of a finished run of the model MODEL; `summary`: what summary.json says further."""
    folder.mkdir(parents=True)
    steps, ranks = seconds.shape[:2]
    (folder / "summary.json").write_text(json.dumps({"finished": True, "steps": steps, "ranks": ranks} | summary))
    lines = [f"{key} = {json.dumps(value)}" for key, value in MODEL.items()]
    others = '[train]\nlength = 512\n[optimizer]\nadam_period = 1\n[comm]\ngradients = "bf16"\n[data]\ntrain = ["data.h5"]\n[validation]\ntokens = 0\n'
    (folder / "deck.toml").write_text("[model]\n" + "\n".join(lines) + "\n" + others)
    write_trace(folder / "trace.h5", seconds, tokens, communication, between)


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

    def read_study(self, **values):
        return read_study(self.write_study(**values))

    def script(self, *arguments, commands=None, code=0):
        """Runs scaling_study.py, which finds mpirun, or whatever `commands` holds, first; returns what it printed."""
        search = f"{commands or Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"
        job = subprocess.run([sys.executable, "-B", TOOLS / "scaling_study.py", *map(str, arguments)],
                             env=os.environ | {"PATH": search}, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(job.returncode, code, job.stdout)
        return job.stdout


def write(path, contents):
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())


class ToolsTest(ScalingTest):
    """Each test has the directory of a run of STEPS steps, on which the tools are started."""

    def setUp(self):
        super().setUp()
        self.run = self.folder / "outputs" / "a_1"
        self.write_run(self.run, 1)

    def write_run(self, folder, seed, ranks=2):
        import numpy as np

        seconds = np.full((STEPS, ranks, len(PHASES)), 0.1)
        write_run(folder, seconds, 4096, np.full((STEPS, ranks), 0.2), **SUMMARY)
        with open(folder / "deck.toml", "a") as deck:
            deck.write(f"[run]\nname = \"{folder.name}\"\nseed = {seed}\n")

    def end(self, script, *arguments, **options):
        """Exit code, standard output and standard error of a tool."""
        options = {"stdout": subprocess.PIPE} | options
        job = deadline.run([sys.executable, "-B", TOOLS / script, *map(str, arguments)],
                           stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, **options)
        return job.returncode, job.stdout, job.stderr

    def assert_line(self, error, script, *parts):
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith(f"{script}: "), error)
        for part in parts:
            self.assertIn(str(part), error)

    def assert_refused(self, script, *arguments, names=(), **options):
        code, output, error = self.end(script, *arguments, **options)
        self.assertIn(code, (1, 2), error)
        self.assert_line(error, script, *names)
        self.assertFalse(output)

    def assert_error(self, function, argument, *parts):
        """What the tool would end with."""
        with self.assertRaises(tool.ToolError) as caught:
            function(argument)
        for part in parts:
            self.assertIn(str(part), str(caught.exception))

    def change_trace(self, name, values=None, **attributes):
        import h5py

        with h5py.File(self.run / "trace.h5", "r+") as file:
            if name:
                del file[name]
                if values is not None:
                    file[name] = values
            for key, value in attributes.items():
                file.attrs[key] = value

    def unreadable(self, path):
        """Puts in the place of a file what is none, one after the other."""
        path.unlink()
        for make, remove in ((Path.mkdir, Path.rmdir), (os.mkfifo, Path.unlink),
                             (lambda p: p.symlink_to(p.name), Path.unlink),
                             (lambda p: p.symlink_to("/dev/zero"), Path.unlink)):
            make(path)
            yield
            remove(path)
