#!/usr/bin/env python3
"""Writes table.md and node.json of a measurement of jobscripts/measure_node.sh, and prints the table.

Reads runs.tsv and facts.tsv in its directory, and what its runs have left. Only the times of phases and the error of
the model need numpy and h5py; called again where these are, it adds them. Exit codes: 0, 1 where a run has failed.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import tool
from measure_node_steps import PHASES, add_phases, model_errors, read_stages

STUDIES = ("strong", "weak")
TRANSPORT = re.compile(r"^device .* tensors travel through (.*)$", re.MULTILINE)
# Of summary.json, by their names here.
FIGURES = {"steps": "steps", "tokens_per_second": "tokens_per_second", "first_step_seconds":
           "time_to_first_step_seconds", "training_seconds": "train_seconds", "training_loss": "final_train_loss",
           "validation_loss": "final_val_loss"}
# Heading of the table -> key, factor, format.
COLUMNS = {
    "steps": ("steps", 1, "d"), "ms/step": ("step_ms", 1, ".1f"), "tokens/s": ("tokens_per_second", 1, ",.0f"),
    "GB per rank": ("memory_bytes", 1e-9, ".1f"), "end of step 1": ("first_step_seconds", 1, ".1f"),
    "training": ("training_seconds", 1, ".1f"),
    "training loss": ("training_loss", 1, ".5f"), "validation loss": ("validation_loss", 1, ".5f"),
    "wall": ("wall_seconds", 1, "d"),
}
STEP_COLUMNS = {"stage": ("stage", 1, "d"), "window": ("window", 1, "d"), "tokens": ("tokens", 1, "d"),
                "steps": ("steps", 1, "d"), "ms/step": ("step_ms", 1, ".2f")}
PHASE_COLUMNS = {name.replace("_", " "): (name, 1, ".2f") for name in (*PHASES, "rest")}
LOSSES = ("training_loss", "validation_loss")
LEGENDS = ("Times in seconds but for ms/step, the median of the steps after the first fifth, where there are no stages; "
           "tokens/s: the mean of all steps; GB per rank: the most in use on its GPU, on CPUs by the process; training: "
           "all steps together",
           "ms/step: the median of the steps after the first fifth of the stage; phases in ms, means over the ranks and "
           "the middle half of these steps; reduce gradients, gather weights and sync: what computation waits for; hidden: the share of "
           "communication that it does not wait for")


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, metavar="DIRECTORY", help="directory of the measurement")
    parser.add_argument("--quick", action="store_true", help="without times of phases and errors of the model")
    return tool.parse(parser)


def read_rows(path, columns):
    """Lists of the fields, separated by tabs, of a file's lines."""
    rows = [line.split("\t") for line in tool.read_text(path).splitlines()]
    if any(len(row) != columns for row in rows):
        raise tool.ToolError(f"{path}: a line has not {columns} fields")
    return rows


def output_folder(folder, run):
    """Of a training run, in a study or of its own."""
    if run["part"] in STUDIES:
        return folder / "report" / run["deck"] / run["part"] / run["run"]
    return folder / "runs" / f"{run['deck']}.{run['part']}.{run['run']}.{run['ranks']}"


def log_file(folder, run):
    """What the program has printed, or where it has not started, and of a study's report, what scaling_study.py has."""
    deck = f"{run['deck']}." if run["deck"] else ""
    if run["part"] not in STUDIES:
        return folder / f"{deck}{run['part']}.{run['run']}.{run['ranks']}.log"
    own = output_folder(folder, run).with_suffix(".log")
    return own if own.is_file() else folder / f"{deck}{run['part']}.log"


def measure(run, output, quick):
    """Adds the figures of a training run that has finished. Throws ToolError."""
    path = output / "summary.json"
    summary, log = tool.read_json(path), tool.read_text(output / "log.txt")
    if not tool.field(summary, "finished", bool, path):
        raise tool.ToolError(f"stopped by {summary.get('stopped_by')}")
    run |= {name: summary.get(key) for name, key in FIGURES.items()}
    run["memory_bytes"] = summary.get("peak_device_memory_bytes", summary.get("peak_memory_bytes"))
    run["stages"] = read_stages(output)
    if len(run["stages"]) == 1:
        run["step_ms"] = run["stages"][0]["step_ms"]
    if transport := TRANSPORT.search(log):
        run["transport"] = transport[1]
    if run["training_loss"] is None or not math.isfinite(run["training_loss"]):
        raise tool.ToolError("the training loss is not a finite number")
    if not quick:
        try:
            add_phases(run["stages"], output)
        except tool.ToolError as error:
            run["no_phases"] = str(error)
    for stage in run["stages"]:
        del stage["counted"]


def last_words(log):
    """Which rank a signal has ended, as mpirun says, or what a program said at last of what is wrong, or else the last
    line that is no ruler."""
    lines = [line for line in read_log(log).splitlines() if line.strip(" -")]
    killed = [line for line in lines if " noticed that process rank " in line]
    said = killed or [line for line in lines if re.match(r"(nanorun|scaling_study\.py): ", line)] or lines
    return tool.one_line(said[-1])[:120].replace("|", "/") if said else ""


def read_log(log):
    return log.read_text(errors="replace") if log.is_file() else ""


def judge_tests(run, log):
    """Result of a test program or script that has ended with exit code 0, or 77: skipped."""
    text = read_log(log)
    passed = re.findall(r"\[  PASSED  \] (\d+) test", text) or re.findall(r"^Ran (\d+) test", text, re.MULTILINE)
    run["passed"] = min(map(int, passed), default=0)
    run["skipped"] = "[  SKIPPED ]" in text or run["exit_code"] == 77
    if run["passed"] > 0:
        return f"{run['passed']} passed" + (", some skipped" if run["skipped"] else "")
    if run["skipped"]:
        return f"skipped: {last_words(log).removeprefix('skipped: ')}"
    return "FAILED (no test has run)"


def judge(run, folder, quick):
    """The result of a run in words, and its figures within `run`."""
    log = log_file(folder, run)
    if run["part"] == "faults" and run["exit_code"] in (0, 77):
        return judge_tests(run, log)
    if run["exit_code"] == 124:
        return "FAILED (124): not done in time"
    if run["exit_code"] != 0:
        return f"FAILED ({run['exit_code']}): {last_words(log)}"
    if run["run"] == "report":
        return "ok"
    try:
        measure(run, output_folder(folder, run), quick)
    except tool.ToolError as error:
        return f"FAILED ({error})"
    if run["part"] == "nccl" and not run.get("transport", "").startswith("NCCL"):
        return "ok, but not through NCCL"
    return "ok"


def read_runs(folder, quick):
    runs = []
    for deck, part, name, ranks, code, seconds, note in read_rows(folder / "runs.tsv", 7):
        run = {"deck": deck, "part": part, "run": name, "ranks": int(ranks) if ranks else None,
               "wall_seconds": int(seconds) if seconds else None, "exit_code": None if code == "-" else int(code)}
        run["result"] = note or judge(run, folder, quick)
        if run["result"].startswith("FAILED"):
            run["result"] += f"; see {log_file(folder, run).relative_to(folder)}"
        runs.append(run)
    return runs


def series_of(run):
    """Runs that differ in their ranks alone belong to one series: its deck, part and kind of scaling."""
    kind = run["part"] if run["part"] in STUDIES else run["run"]
    return (run["deck"], run["part"], kind) if kind in STUDIES and "stages" in run else None


def spread(runs, loss):
    """(most - least) / least of the losses; None with fewer than two."""
    values = [run[loss] for run in runs if run.get(loss) is not None]
    return (max(values) - min(values)) / min(values) if len(values) > 1 else None


def efficiency(steps, kind):
    """Of step times by rank count: of time for weak, of time by ranks for strong scaling."""
    least = min(steps)
    return {n: steps[least] / time * (least / n if kind == "strong" else 1) for n, time in steps.items()}


def scaling(runs):
    """Of each series on several rank counts the efficiencies of its stages, and the spread of the losses where the work
    is the same on all of them. The part `losses` is for losses alone: its windows grow."""
    found = []
    for (deck, part, kind), group in itertools.groupby(filter(series_of, runs), series_of):
        group = list(group)
        if len(group) < 2:
            continue
        shares = []
        for stages in zip(*(run["stages"] for run in group)):
            steps = {run["ranks"]: stage["step_ms"] for run, stage in zip(group, stages)}
            if part != "losses":
                shares.append({"window": stages[0]["window"], "by_ranks": efficiency(steps, kind)})
        found.append({"deck": deck, "part": part, "kind": kind, "efficiency": shares,
                      "relative_spread": {loss: spread(group, loss) for loss in LOSSES if kind == "strong"}})
    return found


def scaling_lines(one):
    title = f"{one['deck']} {one['part']}" + ("" if one["part"] in STUDIES else f" {one['kind']}")
    lines = []
    for i, stage in enumerate(one["efficiency"], 1):
        which = f", stage {i} with window {stage['window']}" if len(one["efficiency"]) > 1 else ""
        lines.append(f"{title}{which}, efficiency: "
                     + ", ".join(f"{100 * share:.1f} % on {n}" for n, share in stage["by_ranks"].items()))
    return lines + [f"{title}, relative spread of {loss.replace('_', ' ')} over rank counts: {value:.1e}"
                    for loss, value in one["relative_spread"].items() if value is not None]


def model_lines(folder, runs):
    """How well the model of each study predicts its steps, where the modules for that are there."""
    lines = []
    for run in runs:
        if run["run"] != "report" or run["result"] != "ok":
            continue
        try:
            errors = model_errors(folder / f"{run['deck']}.{run['part']}.toml", folder / "report" / run["deck"])
        except tool.ToolError:
            continue
        if errors:
            lines.append(f"{run['deck']} {run['part']}, error of the model, each step predicted from the others: "
                         + ", ".join(f"{100 * error:+.1f} % on {n}" for n, error in errors.items()))
    return lines


def findings(runs):
    lines = [line for one in scaling(runs) for line in scaling_lines(one)]
    carried = {}
    for run in runs:
        if "transport" in run:
            carried.setdefault(run["transport"], []).append(f"{run['deck']} {run['part']}")
    lines += [f"tensors travelled through {name}: {', '.join(dict.fromkeys(parts))}" for name, parts in carried.items()]
    missing = dict.fromkeys(run["no_phases"] for run in runs if "no_phases" in run)
    return lines + [f"phases are missing: {why}" for why in missing]


def cell(run, key, factor, how):
    value = run.get(key)
    return "" if value is None or (key == "wall_seconds" and run["exit_code"] is None) else format(value * factor, how)


def rows_of_table(heading, rows):
    lines = [f"| {' | '.join(cells)} |" for cells in (heading, *rows)]
    return [lines[0], "|---" * len(heading) + "|", *lines[1:]]


def run_rows(runs):
    return [[run["deck"], run["part"], run["run"], str(run["ranks"] or ""), run["result"],
             *(cell(run, *column) for column in COLUMNS.values())] for run in runs]


def step_rows(runs):
    """A row for each stage of each run."""
    rows = []
    for run in runs:
        for stage in run.get("stages", []):
            rows.append([run["deck"], run["part"], run["run"], str(run["ranks"]),
                         *(cell(stage, *column) for column in STEP_COLUMNS.values()),
                         *(cell(stage.get("phases_ms", {}), *column) for column in PHASE_COLUMNS.values()),
                         cell(stage, "hidden_share", 1, ".0%")])
    return rows


def is_whole(facts):
    """Whether the measurement has come to its end."""
    names = [name for name, _ in facts]
    return "end" in names and "interrupted" not in names


def text_of(facts, runs, further):
    which = ["deck", "part", "run", "ranks"]
    title = "# Measurement of a node" + ("" if is_whole(facts) else ", partial: it has not come to its end")
    lines = [title, "", *(f"- {name}: {value}" for name, value in facts), "",
             *rows_of_table([*which, "result", *COLUMNS], run_rows(runs)), "",
             *(f"- {line}" for line in (*findings(runs), *further)), f"- {LEGENDS[0]}"]
    if steps := step_rows(runs):
        lines += ["", "## Where steps go", "",
                  *rows_of_table([*which, *STEP_COLUMNS, *PHASE_COLUMNS, "hidden"], steps), "", f"- {LEGENDS[1]}"]
    return "\n".join([*lines, ""])


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
