"""Files of inputs/benchmark: what a benchmark trains, and the losses that it must reach."""

import pathlib
from dataclasses import dataclass, field

import program
import tool
from program import BUILDS

# References of GPUs with other products in fp8 than Hopper, and of those that compute in bf16 what the deck has in fp8.
OTHER_FP8, BF16 = "gpu_8_9", "gpu_bf16"
HOPPER = "9.0a"  # its kernels, as summary.json names them
REFERENCES = (*BUILDS, OTHER_FP8, BF16)
PROVENANCE = ("machine", "date", "commit", "command")  # fields of a reference
# Overrides of every run: the same work on any number of ranks, and nothing beside it.
FIXED = ("run.log_every=1", "train.cooldown=0", "data.validation=[]", "data.end=wrap", "validation.every=0",
         "validation.tokens=0", "checkpoint.every=0", "checkpoint.milestone_every=0", "checkpoint.at_end=false",
         "checkpoint.restart=none", "trace.enabled=true")
OWNED = ("run.name", "run.outputs", "model.vocabulary", "train.steps", "train.sequences", "train.length", "data.train",
         "data.distinct_sequences", "checkpoint.weights", "stop.step", *(line.split("=")[0] for line in FIXED))
OWNER = "the benchmark"


@dataclass(frozen=True)
class Expected:
    """What the checked step should give: its loss, and on request its gradient norm; each may be off by a tolerance, that
    of the norm is relative."""

    loss: float
    tolerance: float
    gradient_norm: float | None = None
    norm_tolerance: float | None = None


@dataclass(frozen=True)
class Reference:
    """Of a build, or of GPUs whose products in fp8 are unlike those of Hopper."""

    expected: dict  # number of different sequences of a step -> Expected
    facts: dict  # PROVENANCE


@dataclass(frozen=True)
class Benchmark:
    """A file of inputs/benchmark, as it is trained: with `weak` the work grows with the ranks."""

    path: pathlib.Path
    deck: pathlib.Path
    vocabulary: int
    seed: int
    entropy_rate: float  # nats per token
    sequences: int  # different sequences of a step, on all ranks together; with `weak` at most so many
    length: int
    checked: int  # step whose loss is compared; those after it are timed
    steps: int
    overrides: tuple
    references: dict = field(default_factory=dict)  # one of REFERENCES -> Reference
    weak: bool = False

    @property
    def size(self):
        return self.path.stem

    @property
    def kind(self):
        return "weak" if self.weak else "strong"

    def allows(self, sequences):
        """Whether steps may have so many sequences: with `weak` all different ones, or each equally often."""
        if not self.weak:
            return sequences == self.sequences
        return sequences <= self.sequences or sequences % self.sequences == 0

    def expected(self, name, sequences):
        """What steps of so many sequences should give, by the reference of this name; None where the file does not say
        it."""
        reference = self.references.get(name)
        return reference and reference.expected.get(min(sequences, self.sequences))

    def section(self, name):
        """The section of a reference."""
        return f"weak.reference.{name}" if self.weak else f"reference.{name}"


def read_tolerance(table, path, key="tolerance"):
    return tool.field(table, key, float, path, least=1e-12, most=1)


def read_strong(table, path, sequences):
    """The losses of a section [reference.*], and its keys."""
    loss = tool.field(table, "loss", float, path, least=0)
    return {sequences: Expected(loss, read_tolerance(table, path))}, {"loss", "tolerance"}


def read_weak(table, path, sequences):
    """Likewise of a section [weak.reference.*], for several numbers of ranks."""
    columns = {key: tool.field(table, key, list, path) for key in ("ranks", "losses", "gradient_norms")}
    if len({len(column) for column in columns.values()}) > 1:
        raise tool.ToolError(f"{path}: {', '.join(columns)} of a reference should be equally long")
    tolerances = read_tolerance(table, path), read_tolerance(table, path, "norm_tolerance")
    expected = {}
    for ranks, loss, norm in zip(*columns.values()):
        tool.require(ranks, int, path, "a number of ranks", least=1, most=sequences)
        tool.require(loss, float, path, "a loss", least=0)
        tool.require(norm, float, path, "a gradient norm", least=1e-30)
        expected[ranks] = Expected(loss, tolerances[0], norm, tolerances[1])
    return expected, {*columns, "tolerance", "norm_tolerance"}


def read_references(tables, path, read, sequences, prefix=""):
    """Name -> Reference of the section `reference` among `tables`."""
    found = {}
    for name, table in (tool.field(tables, "reference", dict, path) if "reference" in tables else {}).items():
        where = f"{prefix}reference.{name}"
        if name not in REFERENCES:
            raise tool.ToolError(f"{path}: [{where}]: the references are {', '.join(REFERENCES)}")
        tool.require(table, dict, path, where)
        facts = {key: tool.field(table, key, str, path) for key in PROVENANCE}
        expected, keys = read(table, path, sequences)
        for key in table.keys() - keys - facts.keys():
            raise tool.ToolError(f"{path}: [{where}]: {key} is no key of a reference")
        found[name] = Reference(expected, facts)
    return found


def read_benchmark(path, weak=False):
    """Reads a file of inputs/benchmark. Throws ToolError."""
    tables = tool.read_toml(path)
    for name in tables.keys() - {"benchmark", "reference", "weak"}:
        raise tool.ToolError(f"{path}: [{name}] is no section of a benchmark; sections: benchmark, reference, weak")
    table = tool.field(tables, "benchmark", dict, path)
    numbers = {key: tool.field(table, key, int, path, least=1, most=2**31 - 1)
               for key in ("vocabulary", "seed", "sequences", "length", "checked", "steps")}
    for key in table.keys() - numbers.keys() - {"deck", "entropy_rate", "overrides"}:
        raise tool.ToolError(f"{path}: {key} is no key of a benchmark")
    if numbers["checked"] + 4 > numbers["steps"]:
        raise tool.ToolError(f"{path}: steps should be more than checked by 4 at least")
    overrides = tool.field(table, "overrides", list, path)
    program.require_overrides(overrides, f"{path}: overrides", OWNED, OWNER)
    references = read_references(tables, path, read_strong, numbers["sequences"])
    if weak and "weak" not in tables:
        raise tool.ToolError(f"{path}: has no section [weak]")
    if "weak" in tables:
        table_weak = tool.field(tables, "weak", dict, path)
        for key in table_weak.keys() - {"sequences", "reference"}:
            raise tool.ToolError(f"{path}: [weak]: {key} is no key of a benchmark")
        sequences = tool.field(table_weak, "sequences", int, path, least=2, most=1024)
        weak_references = read_references(table_weak, path, read_weak, sequences, "weak.")
        if weak:
            numbers["sequences"], references = sequences, weak_references
    return Benchmark(path, path.parent / tool.field(table, "deck", str, path), **numbers,
                     entropy_rate=tool.field(table, "entropy_rate", float, path, least=0), overrides=tuple(overrides),
                     references=references, weak=weak)
