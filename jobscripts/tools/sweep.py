#!/usr/bin/env python3
"""Expands a sweep: every combination of the values of some keys of a deck, each with several seeds.

SWEEP.toml names the deck, a name, the seeds and, in [grid], "section.key" = [values]. --list shows the tasks; --task
prints the arguments of nanorun train for one, a line each, and nothing where that run has finished. --page writes the
comparison of all runs once they have finished. jobscripts/sweep.sbatch runs a task of a job array.
"""

import argparse
import collections
import itertools
import math
import os
import pathlib
import re
import sys
from dataclasses import dataclass

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import tool

MOST_TASKS, LONGEST_NAME = 10000, 200  # bytes
# A key of a deck, with the number of its stage or group.
KEY = re.compile(r"(?:(stage|group)\.(0|[1-9][0-9]{0,5})|(?!stage\.|group\.)[a-z_]+)\.[a-z0-9_]+")
KEYS = {"deck", "name", "seeds", "grid", "target"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("sweep", type=pathlib.Path, metavar="SWEEP.toml")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="number, name and keys of each task")
    what.add_argument("--task", type=int, metavar="I", help="arguments of this task, from 1 on")
    what.add_argument("--page", action="store_true", help="compare the runs if all have finished")
    return tool.parse(parser)


@dataclass
class Task:
    name: str
    overrides: list  # section.key=value
    steps: object  # steps of the whole run; None where the deck leaves them open


@dataclass
class Sweep:
    deck: str
    name: str
    target: float  # None: there is none
    outputs: pathlib.Path  # folder of the runs' directories
    tasks: list

    def folder(self, task):
        return self.outputs / task.name

    def finished(self, task):
        try:
            summary = tool.read_json(self.folder(task) / "summary.json")
        except tool.ToolError:
            return False
        return summary.get("finished") is True and (task.steps is None or summary.get("steps") == task.steps)


def value_text(value, path, key):
    """A value as the command line of nanorun takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, str):
        return tool.toml_string(printable(value, path, key))
    if isinstance(value, list):
        return "[" + ", ".join(value_text(part, path, key) for part in value) + "]"
    raise tool.ToolError(f"{path}: {key}: {tool.one_line(value)} is no value of a key")


def printable(text, path, key):
    if not text or not text.isprintable():
        raise tool.ToolError(f"{path}: {key} is empty or has characters that cannot be seen")
    return text


def name_part(text):
    """What can stand of a value in the name of a directory."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text.strip('"[]'))


def filled(table, key, path):
    """The list under a key of the table. Throws ToolError where it is empty or has a value twice."""
    values = tool.field(table, key, list, path)
    if not values:
        raise tool.ToolError(f"{path}: {key} is empty")
    if any(value in values[:i] for i, value in enumerate(values)):
        raise tool.ToolError(f"{path}: {key} has a value twice")
    return values


def read_grid(table, path):
    """The grid: key -> values as text."""
    grid = tool.field(table, "grid", dict, path) if "grid" in table else {}
    for key in grid:
        if not KEY.fullmatch(key):
            raise tool.ToolError(f"{path}: grid: \"{tool.one_line(key)}\" is no \"section.key\", \"stage.N.key\" or "
                                 "\"group.N.key\", in quotes")
        if key in ("run.name", "run.seed", "run.outputs"):
            raise tool.ToolError(f"{path}: grid: {key} is given by the sweep")
    return {key: [value_text(value, path, key) for value in filled(grid, key, path)] for key in grid}


def require_tables(grid, table, deck, path):
    """Throws ToolError unless the deck has the stages and groups that the grid names."""
    for key in grid:
        kind, index = KEY.fullmatch(key).groups()
        count = len(tool.field(table, kind, list, deck)) if kind in table else 0
        if kind and int(index) >= count:
            raise tool.ToolError(f"{path}: grid: {key}: {deck} has {count} [[{kind}]], which count from 0")


def read_deck(table, deck):
    """Outputs and steps, as far as the deck gives them."""
    run, train = (tool.field(table, key, dict, deck) if key in table else {} for key in ("run", "train"))
    outputs = tool.field(run, "outputs", str, deck) if "outputs" in run else "outputs"
    return pathlib.Path(outputs), train.get("steps")


def expand(name, seeds, grid, steps, path):
    """The tasks: combinations in the order of the file, the seeds of each one after the other. Names hold the values of
    those keys that have several."""
    tasks = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values))
        parts = [name_part(value) for key, value in chosen.items() if len(grid[key]) > 1]
        for seed in seeds:
            full = "_".join([name, *parts, str(seed)])
            overrides = [f"{key}={value}" for key, value in chosen.items()]
            overrides += [f"run.seed={seed}", f"run.name={tool.toml_string(full)}"]
            given = chosen.get("train.steps")
            tasks.append(Task(full, overrides, int(given) if given and given.isdigit() else steps))
    for name, count in collections.Counter(task.name for task in tasks).items():
        if count > 1:
            raise tool.ToolError(f"{path}: two tasks would have the name {name}")
        if len(name.encode()) > LONGEST_NAME:
            raise tool.ToolError(f"{path}: the name {name} is too long")
    return tasks


def read_sweep(path):
    """Reads a sweep file. Throws ToolError."""
    table = tool.read_toml(path)
    for key in table.keys() - KEYS:
        raise tool.ToolError(f"{path}: {key} is no key of a sweep; those of the deck stand in [grid]")
    deck = printable(tool.field(table, "deck", str, path), path, "deck")
    name = printable(tool.field(table, "name", str, path), path, "name")
    if "/" in name:
        raise tool.ToolError(f"{path}: name: {name} cannot be part of a directory's name")
    seeds = filled(table, "seeds", path)
    for seed in seeds:
        tool.require(seed, int, path, "a seed", least=0, most=2**63 - 1)
    target = tool.field(table, "target", float, path) if "target" in table else None
    grid = read_grid(table, path)
    count = math.prod(map(len, grid.values())) * len(seeds)
    if count > MOST_TASKS:
        raise tool.ToolError(f"{path}: {count} tasks are more than {MOST_TASKS}")
    deck_table = tool.read_toml(deck)
    require_tables(grid, deck_table, deck, path)
    outputs, steps = read_deck(deck_table, deck)
    return Sweep(deck, name, target, outputs, expand(name, seeds, grid, steps, path))


def list_tasks(sweep):
    for number, task in enumerate(sweep.tasks, 1):
        state = "finished  " if sweep.finished(task) else ""
        tool.say(f"{number}  {task.name}  {state}{' '.join(task.overrides[:-1])}")


def show_task(sweep, number):
    if not 1 <= number <= len(sweep.tasks):
        raise tool.ToolError(f"--task: the sweep has tasks 1 to {len(sweep.tasks)}, not {number}")
    task = sweep.tasks[number - 1]
    if sweep.finished(task):
        tool.warn(f"{task.name} has finished")
    else:
        tool.say("\n".join([sweep.deck, *task.overrides]))


def write_page(sweep):
    left = [task.name for task in sweep.tasks if not sweep.finished(task)]
    if left:
        tool.say(f"{len(left)} of {len(sweep.tasks)} tasks have not finished, and there is no page yet")
        return
    import compare

    page = sweep.outputs / f"{sweep.name}.html"
    compare.write([sweep.folder(task) for task in sweep.tasks], sweep.target, page)
    tool.say(page)


def main():
    arguments = parse_arguments()
    sweep = read_sweep(arguments.sweep)
    if arguments.list:
        list_tasks(sweep)
    elif arguments.page:
        write_page(sweep)
    else:
        show_task(sweep, arguments.task)


if __name__ == "__main__":
    tool.run(main)
