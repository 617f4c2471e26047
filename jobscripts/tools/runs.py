"""Runs as their output directories show them: decks, losses by step, seconds and tokens, and how they ended."""

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass, field

import tool
from metrics import Metrics, Trained

TARGET = 3.28  # validation loss that the speedrun is to reach
OWN_KEYS = ("run.name", "run.seed")  # in which the runs of a group of seeds differ
# What makes a build, of a run's provenance.
BUILD = ("version", "commit", "compiler", "flags", "mpi", "hdf5", "blas", "kokkos", "cuda", "cuda_runtime",
         "cuda_driver", "nccl")


@dataclass
class Validation:
    step: int
    loss: float
    seconds: float  # seconds of training until then
    tokens: float


@dataclass
class Run:
    folder: object
    deck: dict  # "section.key" -> value
    summary: dict  # empty while there is none
    validations: list
    label: str = ""
    seconds: float = math.nan  # seconds of training at the end
    steps: int = 0
    loss: float = field(init=False)  # loss of the last validation

    def __post_init__(self):
        path = self.folder / "summary.json"
        if self.summary:
            self.steps = tool.field(self.summary, "steps", int, path, least=0)
            self.seconds = tool.field(self.summary, "train_seconds", float, path, least=0)
        self.loss = self.validations[-1].loss if self.validations else math.nan
        if self.summary.get("final_val_loss") is not None:
            self.loss = tool.field(self.summary, "final_val_loss", float, path)

    @property
    def finished(self):
        return bool(self.summary.get("finished"))

    @property
    def state(self):
        return ("not ended" if not self.summary else "finished" if self.finished else
                tool.one_line(f"stopped: {self.summary.get('stopped_by')}"))

    @property
    def seed(self):
        return self.deck.get("run.seed")

    def group(self):
        """What runs share that differ only in their seeds."""
        return json.dumps({key: value for key, value in self.deck.items() if key not in OWN_KEYS}, default=str,
                          sort_keys=True)


def is_earlier(folder, name):
    """Whether the directory is a copy NAME.1, NAME.2, ... of an earlier run, which checkpoint.restart=none keeps."""
    return bool(re.fullmatch(re.escape(name) + r"\.[0-9]+", os.path.basename(os.path.realpath(folder))))


def distinct(folders):
    """Each directory once, however often and by whatever path it is named."""
    named = {os.path.realpath(folder): folder for folder in reversed(folders)}.values()
    return list(reversed(named))


def flat(deck, prefix=""):
    """The keys of a deck by the names of the command line, such as train.steps and stage.0.length."""
    keys = {}
    for key, value in deck.items():
        if isinstance(value, list) and value and all(isinstance(table, dict) for table in value):
            value = {str(i): table for i, table in enumerate(value)}
        keys |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return keys


def weighted_stages(deck):
    """Numbers of the stages whose training loss is a weighted sum over several targets. `deck`: key -> value."""
    found = set()
    for key, value in deck.items():
        stage = re.fullmatch(r"stage\.([0-9]+)\.(targets|targets_end|prefix|prefix_end)", key)
        plain = value in ([], [1]) if stage and stage[2].startswith("targets") else value in (0, -1)
        if stage and not plain:
            found.add(int(stage[1]))
    return sorted(found)


def weighted_note(deck):
    """A note on the training loss; empty where it is the cross-entropy of the next token."""
    stages = weighted_stages(deck)
    if not stages:
        return ""
    return f"weighted sum over several targets in stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"


def read_deck(folder):
    return flat(tool.read_toml(folder / "deck.toml"))


def read_summary(folder):
    """The object of summary.json; empty where there is none yet."""
    path = folder / "summary.json"
    if not os.path.lexists(path):
        return {}
    summary = tool.read_json(path)
    tool.field(summary, "finished", bool, path)
    return summary


def from_metrics(path):
    metrics = Metrics(path)
    metrics.poll()
    trained = metrics.trained()
    ends = metrics.steps[-1:] + metrics.validations[-1:]
    steps = max((line["step"] for line in ends), default=0)
    seconds = max((line.get("train_seconds", math.nan) for line in ends), default=math.nan)
    return steps, seconds, [Validation(line["step"], line["validation_loss"], line.get("train_seconds", math.nan),
                                       trained.after(line["step"])) for line in metrics.validations]


def from_trace(path):
    tool.need("numpy", "h5py")
    from trace_file import read_trace, train_seconds, updates_before

    trace = read_trace(path)
    seconds = [0.0, *map(float, train_seconds(trace))]
    rows = updates_before(trace, trace["validation_step"])
    trained = Trained()
    for step, tokens in zip(trace["step"].tolist(), trace["tokens"].tolist()):
        trained.add(step + 1, tokens)
    validations = [Validation(int(step), float(loss), seconds[row], trained.after(int(step)))
                   for step, loss, row in zip(trace["validation_step"], trace["validation_loss"], rows)]
    return int(trace["step"][-1]) + 1 if len(trace["step"]) else 0, seconds[-1], validations


def advice(message):
    """What to do about a file of a run, by the message that names what is wrong with it; empty where it names none."""
    path = next(iter(re.findall(r"^.*?(?:deck\.toml|summary\.json|metrics\.jsonl|trace\.h5)(?=: )", message)), "")
    folder, name = os.path.split(path)
    if name == "deck.toml":
        there = os.path.lexists(path)
        return "restore it from a copy" if there else "name the output directory of a run, in which it lies"
    if name == "summary.json":
        return ("move it away, and the run counts as one that has not ended; or start the run's command once more, "
                "which writes it anew")
    if name == "metrics.jsonl" and os.path.lexists(os.path.join(folder, "trace.h5")):
        return "move it away, and trace.h5 serves in its place"
    if name == "metrics.jsonl" and ": line " in message:
        return "correct that line, or delete it"
    return "restore it from a copy, or leave the run out" if name else ""


@contextlib.contextmanager
def advised():
    """Where a file of a run cannot be read the ToolError says also what to do."""
    try:
        yield
    except tool.ToolError as error:
        what = advice(str(error))
        raise (tool.ToolError(f"{error}; {what}", error.code) if what else error) from None


def read_run(folder):
    """The Run in a directory, from metrics.jsonl, or from trace.h5 where an earlier program has written it. Throws
    ToolError."""
    deck, summary = read_deck(folder), read_summary(folder)
    path, trace = folder / "metrics.jsonl", folder / "trace.h5"
    if os.path.lexists(path):
        steps, seconds, validations = from_metrics(path)
    elif os.path.lexists(trace):
        steps, seconds, validations = from_trace(trace)
    else:
        raise tool.ToolError(f"{folder}: has neither metrics.jsonl nor trace.h5, of which one is to give the losses: "
                             "restore one from a copy, or leave the run out")
    return Run(folder, deck, summary, validations, steps=steps, seconds=seconds)


def name_runs(folders):
    """A label for each directory: its name, or its path where several have the name."""
    names = [os.path.basename(os.path.realpath(folder)) for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders)]


def read_runs(folders):
    """The runs in the directories, with labels. Throws ToolError."""
    folders = distinct(folders)
    found = [read_run(folder) for folder in folders]
    for run, label in zip(found, name_runs(folders)):
        run.label = label
    return found
