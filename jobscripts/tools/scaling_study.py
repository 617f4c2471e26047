#!/usr/bin/env python3
"""Runs a scaling study and reports on it.

Starts the runs of a study file that have not finished yet, then gathers all finished ones into runs.csv, report.html
and report.png in the study's directory. Started again, it continues where it stopped. Exit codes: 0 all runs are in the
report, 1 some are missing there, 2 the study cannot be run.
"""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import tool
from study.launch import LAUNCHERS, launch
from study.study_file import claim_folder, read_study

BUILT = pathlib.Path(__file__).resolve().parents[2] / "build" / "cpu" / "bin" / "nanorun"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=pathlib.Path, help="study file, for example inputs/studies/strong.toml")
    parser.add_argument("--launcher", choices=[*LAUNCHERS, "none"], default="mpirun",
                        help="mpirun: run here; slurm: submit jobs, and report when called again; none: only report")
    parser.add_argument("--program", default=str(BUILT) if BUILT.exists() else "nanorun",
                        help="nanorun (default: that of build/cpu, or else the one on the PATH)")
    return tool.parse(parser)


def main():
    arguments = parse_arguments()
    study = read_study(arguments.study)
    claim_folder(study)
    if arguments.launcher != "none":
        launch(study, arguments.launcher, arguments.program, tool.say)
    tool.need("numpy", "h5py", "matplotlib")  # a login node may lack them
    from study import analysis, gather, plan, report

    measurements, missing = gather.gather(study)
    for run, why in missing:
        tool.say(f"missing: {run.name} {why}, see {run.log}")
    if not measurements:
        tool.say("no run has finished, so there is no report yet")
        return 1
    plan.require(study, arguments.program)
    for path in report.write(analysis.analyse(study, measurements, missing)):
        tool.say(str(path))
    return 1 if missing else 0


if __name__ == "__main__":
    tool.run(main)
