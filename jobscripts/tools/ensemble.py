#!/usr/bin/env python3
"""Compares runs of one deck with different seeds: prints the final losses, their mean and spread, and how surely the
mean validation loss is below a target.

Reads deck.toml and summary.json of each output directory. Leaves out the copies NAME.1, NAME.2, ... of earlier runs,
which checkpoint.restart=none keeps.
"""

import argparse
import collections
import os
import pathlib
import statistics

import t_test
import tool
from runs import distinct, is_earlier


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, nargs="+", metavar="DIRECTORY",
                        help="output directories of the runs")
    parser.add_argument("--target", type=float, default=3.28, help="validation loss to reach (default: %(default)s)")
    return tool.parse(parser)


def read_run(folder):
    """Seed, steps, training loss and validation loss of a run that has finished, else None. Throws ToolError."""
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
    return (tool.field(run, "seed", int, deck, most=2**64), tool.field(summary, "steps", int, path),
            tool.field(summary, "final_train_loss", float, path), tool.field(summary, "final_val_loss", float, path))


def read_runs(folders):
    """Of each directory once, however often and by whatever path it is named. Warns of runs that are no further
    sample."""
    runs = sorted(run for folder in distinct(folders) if (run := read_run(folder)))
    for seed, count in collections.Counter(run[0] for run in runs).items():
        if count > 1:
            tool.warn(f"warning: {count} runs have the seed {seed}; the p-value takes runs for independent")
    return runs


def table(runs, target):
    lines = [f"{'seed':>9}  {'steps':>8}  {'training loss':>13}  {'validation loss':>15}"]
    lines += [f"{seed:9}  {steps:8}  {train:13.5f}  {validation:15.5f}" for seed, steps, train, validation in runs]
    train, validation = [run[2] for run in runs], [run[3] for run in runs]
    rows = [("mean", statistics.mean)]
    if len(runs) > 1:
        rows += [("deviation", statistics.stdev)]
    lines += [f"{name:>9}  {'':8}  {measure(train):13.5f}  {measure(validation):15.5f}" for name, measure in rows]
    if len(runs) > 1:
        lines += [f"p-value of mean validation loss <= {target:g}: {t_test.below(validation, target):.3g} "
                  f"(one-sided t test, {len(runs)} runs)"]
    return "\n".join(lines)


def main():
    arguments = parse_arguments()
    runs = read_runs(arguments.folder)
    if not runs:
        raise tool.ToolError("no finished run", tool.NOT_DONE)
    tool.say(table(runs, arguments.target))


if __name__ == "__main__":
    tool.run(main)
