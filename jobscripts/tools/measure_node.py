#!/usr/bin/env python3
"""Writes table.md and node.json of a measurement of jobscripts/measure_node.sh, and prints the table.

Reads runs.tsv and facts.tsv in its directory, and what its runs have left. Only the times of phases and the error of
the model need numpy and h5py; called again where these are, it adds them. Exit codes: 0, 1 where a run has failed.
"""

import argparse
import json
import os
import pathlib
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import tool
from node.findings import model_lines, scaling
from node.runs import read_rows, read_runs
from node.table import is_whole, text_of


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, metavar="DIRECTORY", help="directory of the measurement")
    parser.add_argument("--quick", action="store_true", help="without times of phases and errors of the model")
    return tool.parse(parser)


def main():
    arguments = parse_arguments()
    folder = arguments.folder
    facts, runs = read_rows(folder / "facts.tsv", 2), read_runs(folder, arguments.quick)
    text = text_of(facts, runs, [] if arguments.quick else model_lines(folder, runs))
    tool.write(folder / "table.md", text)
    figures = {"facts": dict(facts), "whole": is_whole(facts), "runs": runs, "scaling": scaling(runs)}
    tool.write(folder / "node.json", json.dumps(figures, indent=2) + "\n")
    tool.say(text)
    measured = any(run["exit_code"] is not None for run in runs)
    return tool.NOT_DONE if not measured or any(run["result"].startswith("FAILED") for run in runs) else 0


if __name__ == "__main__":
    tool.run(main)
