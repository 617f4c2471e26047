"""The tensors of a study's model, from its plan.json, in which a launch leaves what the program prints of them, so that a
report needs no program."""

import os
from dataclasses import dataclass, replace

import tool

from . import StudyError
from .launch import PLAN, check_deck, find_program

RULES = ("muon", "adam", "fixed")  # update rules whose cost study/model.py knows


@dataclass(frozen=True)
class Bucket:
    """Tensors that ranks share in whole units: matrices of Muon, rows or elements of Adam."""

    units: int
    unit_size: int  # elements
    rows: int = 0  # rows of a matrix of Muon; 0 for other tensors
    cols: int = 0
    lookup: bool = False  # each token reads a row; only such rows of its gradients travel
    fixed: bool = False  # not trained: it does not travel

    @property
    def size(self):
        return self.units * self.unit_size

    def largest(self, ranks):
        """Elements of the largest share."""
        return -(-self.units // ranks) * self.unit_size


def bucket_of(table, path):
    """The Bucket of an entry of plan.json. Throws ToolError."""
    rule = tool.field(table, "rule", str, path)
    if rule not in RULES:
        raise tool.ToolError(f"{path}: the study knows the cost of the update rules {', '.join(RULES)}, not that of "
                             f"{rule}")
    rows, cols = 0, 0
    if rule == "muon":
        sides = tool.field(table, "matrix", list, path)
        if len(sides) != 2:
            raise tool.ToolError(f"{path}: matrix should have two sides")
        rows, cols = (tool.require(side, int, path, "a side of matrix", least=1) for side in sides)
    return Bucket(tool.field(table, "units", int, path, least=1), tool.field(table, "unit_size", int, path, least=1),
                  rows, cols, tool.field(table, "lookup", str, path) != "none",
                  not tool.field(table, "travels", bool, path))


def read_buckets(folder):
    """The buckets of the model of the study in `folder`, from its plan.json. Throws ToolError."""
    path = folder / PLAN
    if not os.path.lexists(path):
        raise tool.ToolError(f"{path}: missing, so the tensors of the model are not known; a report with --program PATH, "
                             "where nanorun can run, writes it")
    tables = tool.field(tool.read_json(path), "buckets", list, path)
    return [bucket_of(tool.require(table, dict, path, "a bucket"), path) for table in tables]


def require(study, run, program):
    """Makes sure that the study has a plan.json. Studies of earlier versions have none: then `program` writes it from
    the deck of a finished run. Throws ToolError."""
    if os.path.lexists(study.folder / PLAN):
        return
    try:
        found = find_program(program)
    except StudyError:
        raise StudyError(f"{study.folder / PLAN}: missing, and {program} is no program that could write it; name a "
                         "nanorun that runs here with --program") from None
    resolved = replace(run, arguments=("train", str(run.folder / "deck.toml")))
    tool.write(study.folder / PLAN, check_deck(found, resolved, "--json", "--ranks", str(run.ranks)))
