"""A study file, and the runs that it stands for."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import tool

from . import StudyError

KINDS = ("strong", "weak")

# What a run of a study must not do, and what it records for the report.
FIXED = (
    "data.validation=[]", "validation.tokens=0", "validation.every=0", "checkpoint.every=0",
    "checkpoint.milestone_every=0", "checkpoint.at_end=false", "checkpoint.restart=none", "trace.enabled=true",
)
MAX_RANKS = 10**6
LIMITS = {"sequences": 2**31 - 1, "steps": 2**31 - 1, "repeats": 1000}
SHORTEST = 128  # a sequence has a multiple of so many tokens

# Keys of the deck that the study sets itself.
OWNED = ("run.name", "run.outputs", "train.steps", "train.sequences", "trace.json_steps", "stop.step",
         *(line.split("=")[0] for line in FIXED))


@dataclass(frozen=True)
class Run:
    """One program run of a study; `folder` is what the program writes into, `log` what it prints."""

    ranks: int
    repeat: int
    sequences: int  # sequences of a step, on all ranks together; more ranks share these as shorter ones
    folder: Path
    arguments: tuple  # arguments of the program

    @property
    def name(self):
        return self.folder.name

    @property
    def log(self):
        return self.folder.with_suffix(".log")


@dataclass(frozen=True)
class Launch:
    """How runs are started. More ranks than `cores` share them: such runs are marked as oversubscribed."""

    cores: int = 0  # processors or devices of a rank's own; 0: as many as there are ranks
    fill: bool = False  # mpirun: as many runs side by side as fill the cores, so that all rank counts keep all of them busy
    mpirun: tuple = ()  # options of mpirun
    sbatch: tuple = ()  # options of sbatch
    ranks_per_node: int = 0  # most ranks of a node; 0: one for each GPU of a node, or as many as Slurm finds room for
    # Of Slurm's jobs:
    gpus_per_node: int = 0  # 0: what SBATCH_GPUS_PER_NODE says
    exclusive: bool = True  # whether a job has its nodes to itself


@dataclass(frozen=True)
class Prediction:
    """The machine to predict: its ranks, and what connects those of a node, are as fast as the measured ones."""

    fitted_ranks: int = 0  # rank counts up to this one fit the model, larger ones test it; 0: all fit it
    ranks_per_node: int = 0  # 0: those of the study
    memory: str = ""  # of a rank, such as "80GiB": what needs more is not predicted
    # Of the network between nodes:
    latency: float = 0.0  # seconds of a message; 0: as fitted
    bandwidth: float = 0.0  # bytes per second of a rank, each way; 0: as fitted
    max_ranks: int = 4096
    sequences: int = 0  # sequences of the prediction, counted as Study.sequences are; 0: the same number


@dataclass(frozen=True)
class Study:
    """A study file; its fields are the keys."""

    name: str
    kind: str  # strong: `sequences` a step; weak: `sequences` a rank
    deck: Path
    ranks: tuple
    sequences: int
    steps: int
    warmup: int  # first steps of a run that are not counted
    length: int = 0  # strong: tokens of a sequence; more ranks than sequences have one each, shorter. 0: the deck's
    stage: int = -1  # of the deck: its steps alone count; -1: all steps do
    repeats: int = 1
    machine: str = ""  # name of the machine in the report
    outputs: str = "outputs"
    overrides: tuple = ()  # section.key=value, as on the command line
    launch: Launch = field(default_factory=Launch)
    prediction: Prediction = field(default_factory=Prediction)

    @property
    def folder(self):
        return Path(self.outputs) / self.name

    def step_sequences(self, ranks):
        """Sequences of a step on all ranks together."""
        return self.sequences if self.kind == "strong" else self.sequences * ranks

    def fits(self, ranks):
        """Whether the model is fitted to runs on so many ranks."""
        return not self.prediction.fitted_ranks or ranks <= self.prediction.fitted_ranks

    def parts(self, ranks):
        """Ranks that share a sequence, each with a shorter one in its place."""
        return max(1, ranks // self.sequences) if self.kind == "strong" and self.length else 1

    def shares_evenly(self, ranks):
        """Whether each of so many ranks has as many whole sequences as the others."""
        return self.step_sequences(ranks) * self.parts(ranks) % ranks == 0

    def cuts_evenly(self, ranks):
        """Whether the sequences of so many ranks are long enough to be shortened for them."""
        return not self.length or self.length % (SHORTEST * self.parts(ranks)) == 0

    def rounds(self):
        """All runs, those together that start side by side. The rank counts take turns, so that a machine that becomes
        slower affects all of them."""
        return [[self.run(ranks, beside * repeat + i) for i in range(1, beside + 1)]
                for repeat in range(self.repeats)
                for ranks in self.ranks for beside in [self.launch.cores // ranks if self.launch.fill else 1]]

    def runs(self):
        """All runs."""
        return [run for runs in self.rounds() for run in runs]

    def run(self, ranks, repeat):
        """The run with this rank count and repeat."""
        sequences = self.step_sequences(ranks)
        folder = self.folder / f"ranks{ranks}_repeat{repeat}"
        own = (f"run.name={tool.toml_string(folder.name)}", f"run.outputs={tool.toml_string(self.folder)}",
               f"train.steps={self.steps}", f"train.sequences={sequences * self.parts(ranks)}",
               f"trace.json_steps=[{self.steps - 1}]")
        if self.length:
            own += (f"train.length={self.length // self.parts(ranks)}",)
        return Run(ranks, repeat, sequences, folder, ("train", str(self.deck), *self.overrides, *FIXED, *own))

    def identity(self):
        """What two runs must share to be compared."""
        length = {"length": self.length} if self.length else {}
        length |= {"fill": self.launch.cores} if self.launch.fill else {}
        return {"kind": self.kind, "deck": tool.read_text(self.deck), "sequences": self.sequences, "steps": self.steps,
                "overrides": list(self.overrides)} | length


def type_name(kind):
    return {str: "a string", int: "an integer", float: "a number", bool: "true or false", tuple: "a list",
            Path: "a string"}[kind]


def typed(value, kind, where):
    """A value of the file as the type of its field."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not kind:
        raise StudyError(f"{where} must be {type_name(kind)}")
    return value


def section(record, table, where):
    """Checks a table of the file against the fields of a dataclass, `record`, which are its keys. Returns key -> value.
    Throws StudyError."""
    fields = {f.name: f for f in dataclasses.fields(record) if f.name not in ("launch", "prediction")}
    for key in table:
        if key not in fields:
            raise StudyError(f"{where}.{key} is no key of a study; keys of [{where}]: {', '.join(fields)}")
    missing = [name for name, f in fields.items()
               if name not in table and f.default is dataclasses.MISSING]
    if missing:
        raise StudyError(f"{where}.{missing[0]} is missing")
    return {key: typed(value, fields[key].type, f"{where}.{key}") for key, value in table.items()}


def check_ranks(study):
    ranks = study.ranks
    counts = all(type(n) is int and 1 <= n <= MAX_RANKS for n in ranks)
    if not ranks or not counts or list(ranks) != sorted(set(ranks)):
        raise StudyError(f"study.ranks must be a list of rank counts, ascending from 1 or more to at most {MAX_RANKS}")
    if study.length and (study.kind != "strong" or not 0 < study.length <= 2**31 - 1 or study.length % SHORTEST):
        raise StudyError(f"study.length must be a multiple of {SHORTEST}, for strong scaling")
    if study.launch.fill and ranks[-1] > study.launch.cores:
        raise StudyError(f"launch.fill: {ranks[-1]} ranks do not fit on {study.launch.cores} cores")
    refused = [n for n in ranks if not study.shares_evenly(n)]
    short = [n for n in ranks if not study.cuts_evenly(n)]
    if short and not refused:
        raise StudyError(f"study.ranks: {study.length} tokens of a sequence cannot be divided among {short[0]} ranks in "
                         f"multiples of {SHORTEST}")
    if refused:
        small = [n for n in range(1, math.isqrt(study.sequences) + 1) if study.sequences % n == 0]
        divisors = sorted({*small, *(study.sequences // n for n in small)})
        raise StudyError(f"study.ranks: {study.sequences} sequences per step cannot be divided among {refused[0]} "
                         f"ranks; rank counts that divide them: {', '.join(map(str, divisors))}")


def check_overrides(study):
    for line in study.overrides:
        if not isinstance(line, str) or "=" not in line or "\0" in line:
            raise StudyError(f"study.overrides: {line!r} is not of the form section.key=value")
        if line.split("=")[0] in (*OWNED, *(["train.length"] if study.length else [])):
            raise StudyError(f"study.overrides: {line.split('=')[0]} is set by the study itself")


def check_count(key, number):
    if not 0 <= number <= MAX_RANKS:
        raise StudyError(f"{key} must be at least 0 and at most {MAX_RANKS}")


def check_launch(launch):
    for key in ("mpirun", "sbatch"):
        if any(not isinstance(word, str) or "\0" in word for word in getattr(launch, key)):
            raise StudyError(f"launch.{key} must be a list of strings")
    for key in ("ranks_per_node", "gpus_per_node"):
        check_count(f"launch.{key}", getattr(launch, key))
    if launch.fill and launch.cores < 1:
        raise StudyError("launch.fill: launch.cores must say how many there are")
    if 0 < launch.gpus_per_node < launch.ranks_per_node:
        raise StudyError(f"launch.ranks_per_node: {launch.ranks_per_node} ranks cannot have a GPU each of the "
                         f"{launch.gpus_per_node} of launch.gpus_per_node")


def check(study):
    if not study.name.isprintable() or not study.name or "/" in study.name or study.name in (".", ".."):
        raise StudyError("study.name must name one directory")
    if not study.outputs.isprintable() or not str(study.deck).isprintable():
        raise StudyError("study.outputs and study.deck must be paths")
    if study.kind not in KINDS:
        raise StudyError(f"study.kind must be one of {', '.join(KINDS)}")
    for key, most in LIMITS.items():
        if not 1 <= getattr(study, key) <= most:
            raise StudyError(f"study.{key} must be at least 1 and at most {most}")
    if not -1 <= study.stage < study.steps:
        raise StudyError("study.stage must be the number of a stage of the deck, from 0, or -1")
    if not 0 <= study.warmup < study.steps:
        raise StudyError("study.warmup must be at least 0 and less than study.steps")
    prediction = study.prediction
    if not all(0 <= n < 1e15 for n in (prediction.latency, prediction.bandwidth, prediction.sequences,
                                       study.launch.cores)):
        raise StudyError("launch.cores and the keys of [prediction] must not be negative, and below 1e15")
    if not 1 <= prediction.max_ranks <= MAX_RANKS:
        raise StudyError(f"prediction.max_ranks must be at least 1 and at most {MAX_RANKS}")
    for key in ("fitted_ranks", "ranks_per_node"):
        check_count(f"prediction.{key}", getattr(prediction, key))
    if not prediction.memory.isprintable():
        raise StudyError('prediction.memory must be a number of bytes, such as "80GiB"')
    check_launch(study.launch)
    if not study.deck.is_file():
        raise StudyError(f"study.deck: {study.deck}: no such file")
    check_ranks(study)
    check_overrides(study)


def read_study(path):
    """Reads and checks a study file; the deck is named relative to it. Throws ToolError."""
    path = Path(path)
    tables = tool.read_toml(path)
    try:
        for name, table in tables.items():
            if name not in ("study", "launch", "prediction") or not isinstance(table, dict):
                raise StudyError(f"[{name}] is no section of a study; sections: study, launch, prediction")
        study = Study(**section(Study, tables.get("study", {}), "study"),
                      launch=Launch(**section(Launch, tables.get("launch", {}), "launch")),
                      prediction=Prediction(**section(Prediction, tables.get("prediction", {}), "prediction")))
        study = dataclasses.replace(study, deck=path.parent / study.deck)
        check(study)
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    return study


def claim_folder(study):
    """Makes the study's directory. If it exists, checks that its runs belong to this study. Throws StudyError."""
    record = study.folder / "study.json"
    with tool.using(study.folder, UnicodeEncodeError, kind="a path in this locale"):
        study.folder.mkdir(parents=True, exist_ok=True)
    if not record.exists():
        tool.write(record, json.dumps(study.identity(), indent=2) + "\n")
        return
    before, now = tool.read_json(record), study.identity()
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    if changed:
        raise StudyError(f"{study.folder} holds runs of another study ({', '.join(changed)} changed); "
                         "choose another study.name or remove the directory")
