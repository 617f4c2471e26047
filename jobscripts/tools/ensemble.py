#!/usr/bin/env python3
"""Compares runs of one deck with different seeds: prints the final losses, their mean and spread, and how surely the
mean validation loss is below a target.

Reads deck.toml and summary.json of each output directory. Leaves out the copies NAME.1, NAME.2, ... of earlier runs,
which checkpoint.restart=none keeps. Standard library only.
"""

import argparse
import collections
import math
import os
import pathlib
import re
import statistics

import tool


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, nargs="+", metavar="DIRECTORY",
                        help="output directories of the runs")
    parser.add_argument("--target", type=float, default=3.28, help="validation loss to reach (default: %(default)s)")
    return tool.parse(parser)


def t_cdf(t, degrees):
    """P(T <= t) of Student's t distribution with a whole number of degrees of freedom, to an absolute 1e-14 or so.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: finite sums for P(|T| <= t).
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    power = cosine if odd else 1.0  # this term of the sum without the factor sin(angle)
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += power
        power *= cosine * cosine * k / (k + 1)
    total *= math.sin(angle)
    central = 2 / math.pi * (angle + total) if odd else total
    return (1 + central) / 2


def p_value(losses, target):
    """One-sided t test: how likely so low a mean is if the expected loss is the target."""
    error = statistics.stdev(losses) / math.sqrt(len(losses))
    difference = statistics.mean(losses) - target
    if error == 0:
        return 0.5 if difference == 0 else float(difference > 0)
    return t_cdf(difference / error, len(losses) - 1)


def read_run(folder):
    """Seed, steps, training loss and validation loss of a run that has finished, else None. Throws ToolError."""
    path, deck = folder / "summary.json", folder / "deck.toml"
    for file in (path, deck):
        if not os.path.lexists(file):
            tool.warn(f"left out: {file} is missing")
            return None
    run = tool.field(tool.read_toml(deck), "run", dict, deck)
    name = tool.field(run, "name", str, deck)
    if re.fullmatch(re.escape(name) + r"\.[0-9]+", os.path.basename(os.path.realpath(folder))):
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
    distinct = {os.path.realpath(folder): folder for folder in reversed(folders)}.values()
    runs = sorted(run for folder in reversed(distinct) if (run := read_run(folder)))
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
        lines += [f"p-value of mean validation loss <= {target:g}: {p_value(validation, target):.3g} "
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
