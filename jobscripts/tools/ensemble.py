#!/usr/bin/env python3
"""Compares runs of one deck with different seeds: prints the final losses and train times, their mean and spread, and
how surely the mean validation loss is below a target.

Reads deck.toml and summary.json of each output directory. Leaves out the copies NAME.1, NAME.2, ... of earlier runs,
which checkpoint.restart=none keeps.
"""

import argparse
import collections
import os
import pathlib
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import t_test
import tool
from runs import TARGET, distinct, is_earlier

Sample = collections.namedtuple("Sample", "seed steps train_loss validation_loss train_seconds")


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, nargs="+", metavar="DIRECTORY",
                        help="output directories of the runs")
    parser.add_argument("--target", type=float, default=TARGET, help="validation loss to reach (default: %(default)s)")
    return tool.parse(parser)


def read_run(folder):
    """The Sample of a run that has finished, else None. Throws ToolError."""
    path, deck = folder / "summary.json", folder / "deck.toml"
    for file in (path, deck):
        if not os.path.lexists(file):
            tool.warn(f"left out: {file} is missing")
            return None
    run = tool.field(tool.read_toml(deck), "run", dict, deck)
    name = tool.field(run, "name", str, deck)
    if is_earlier(folder, name):
        tool.warn(f"left out: {folder} is an earlier run of the name {tool.one_line(name)}")
        return None
    summary = tool.read_json(path)
    if not tool.field(summary, "finished", bool, path) or summary.get("final_val_loss") is None:
        tool.warn(f"left out: {folder} has no final validation loss")
        return None
    if "final_train_loss_weights" in summary:
        tool.warn(f"{folder}: the training loss is a weighted sum over several targets")
    return Sample(tool.field(run, "seed", int, deck, most=2**64), tool.field(summary, "steps", int, path),
                  tool.field(summary, "final_train_loss", float, path),
                  tool.field(summary, "final_val_loss", float, path),
                  tool.field(summary, "train_seconds", float, path, least=0))


def read_runs(folders):
    """The samples of the directories, each directory once, however often and by whatever path it is named. Warns of
    runs that are no further sample."""
    runs = sorted(run for folder in distinct(folders) if (run := read_run(folder)))
    for seed, count in collections.Counter(run.seed for run in runs).items():
        if count > 1:
            tool.warn(f"warning: {count} runs have the seed {seed}; the p-value takes runs for independent")
    return runs


def row(name, steps, *figures):
    return "{:>9}  {:>8}  {:13.5f}  {:15.5f}  {:10.2f} s".format(name, steps, *figures)


def table(runs, target):
    lines = [f"{'seed':>9}  {'steps':>8}  {'training loss':>13}  {'validation loss':>15}  {'train time':>12}"]
    lines += [row(*run) for run in runs]
    columns = list(zip(*runs))[2:]
    lines += [row("mean", "", *map(statistics.mean, columns))]
    if len(runs) > 1:
        lines += [row("deviation", "", *map(statistics.stdev, columns)),
                  f"p-value for a mean validation loss below {target:g}: {p_value(runs, target):.3g} "
                  f"(one-sided t test, {len(runs)} runs)"]
    return "\n".join(lines)


def p_value(runs, target):
    """The p-value of two or more runs against the target."""
    return t_test.below([run.validation_loss for run in runs], target)


def main():
    arguments = parse_arguments()
    runs = read_runs(arguments.folder)
    if not runs:
        raise tool.ToolError("no finished run", tool.NOT_DONE)
    tool.say(table(runs, arguments.target))


if __name__ == "__main__":
    tool.run(main)
