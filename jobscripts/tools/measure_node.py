#!/usr/bin/env python3
"""Writes table.md and node.json of a measurement of jobscripts/measure_node.sh, and prints the table.

Reads runs.tsv and facts.tsv in its directory, and summary.json and the logs of its runs. Exit codes: 0, 1 where a run
has failed. Standard library only.
"""

import argparse
import json
import math
import pathlib
import re
import statistics

import tool

STUDIES = ("strong", "weak")
STEP = re.compile(r"^step +\d+/\d+ .* ([0-9.]+) ms/step", re.MULTILINE)
TRANSPORT = re.compile(r"^device .* tensors travel through (.*)$", re.MULTILINE)
# Of summary.json, by their names here.
FIGURES = {"steps": "steps", "tokens_per_second": "tokens_per_second", "first_step_seconds":
           "time_to_first_step_seconds", "training_loss": "final_train_loss", "validation_loss": "final_val_loss"}
# Heading of the table -> key, factor, format.
COLUMNS = {
    "steps": ("steps", 1, "d"), "ms/step": ("step_ms", 1, ".1f"), "tokens/s": ("tokens_per_second", 1, ",.0f"),
    "GB per rank": ("memory_bytes", 1e-9, ".1f"), "end of step 1": ("first_step_seconds", 1, ".1f"),
    "training loss": ("training_loss", 1, ".5f"), "validation loss": ("validation_loss", 1, ".5f"),
    "wall": ("wall_seconds", 1, "d"),
}
LEGEND = ("Times in seconds but for ms/step, the median of the steps after the first fifth; tokens/s: the mean of all "
          "steps; GB per rank: the most in use on its GPU, on CPUs by the process")


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, metavar="DIRECTORY", help="directory of the measurement")
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
        return folder / "report" / run["part"] / run["run"]
    return folder / "runs" / f"{run['part']}.{run['run']}.{run['ranks']}"


def log_file(folder, run):
    """What the program has printed, or where it has not started, and of a study's report, what scaling_study.py has."""
    if run["part"] not in STUDIES:
        return folder / f"{run['part']}.{run['run']}.{run['ranks']}.log"
    own = output_folder(folder, run).with_suffix(".log")
    return own if own.is_file() else folder / f"{run['part']}.log"


def median_step(log):
    """Milliseconds, without the first fifth of the steps; None without steps."""
    times = [float(time) for time in STEP.findall(log)]
    return statistics.median(times[len(times) // 5:]) if times else None


def measure(run, output):
    """Adds the figures of a training run that has finished. Throws ToolError."""
    path = output / "summary.json"
    summary, log = tool.read_json(path), tool.read_text(output / "log.txt")
    if not tool.field(summary, "finished", bool, path):
        raise tool.ToolError(f"stopped by {summary.get('stopped_by')}")
    run |= {name: summary.get(key) for name, key in FIGURES.items()}
    run["memory_bytes"] = summary.get("peak_device_memory_bytes", summary.get("peak_memory_bytes"))
    run["step_ms"] = median_step(log)
    if transport := TRANSPORT.search(log):
        run["transport"] = transport[1]
    if run["training_loss"] is None or not math.isfinite(run["training_loss"]):
        raise tool.ToolError("the training loss is not a finite number")


def last_words(log):
    """What a program said at last of what is wrong, or else its last line."""
    lines = [line for line in read_log(log).splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"(nanorun|scaling_study\.py): ", line)] or lines
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


def judge(run, folder):
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
        measure(run, output_folder(folder, run))
    except tool.ToolError as error:
        return f"FAILED ({error})"
    return "ok"


def read_runs(folder):
    runs = []
    for part, name, ranks, code, seconds, note in read_rows(folder / "runs.tsv", 6):
        run = {"part": part, "run": name, "ranks": int(ranks) if ranks else None,
               "wall_seconds": int(seconds) if seconds else None, "exit_code": None if code == "-" else int(code)}
        run["result"] = note or judge(run, folder)
        runs.append(run)
    return runs


def spread(runs, loss):
    """(most - least) / least of the losses of all rank counts; None with fewer than two."""
    values = [run[loss] for run in runs if run["part"] == "losses" and run.get(loss) is not None]
    return (max(values) - min(values)) / min(values) if len(values) > 1 else None


def efficiency(runs, kind):
    """By rank count, of the medians of the steps: of time for weak, of time by ranks for strong scaling."""
    steps = {run["ranks"]: run["step_ms"] for run in runs if run["part"] == kind and run.get("step_ms")}
    least = min(steps, default=0)
    return {n: steps[least] / time * (least / n if kind == "strong" else 1) for n, time in steps.items()}


def findings(runs):
    found = {f"relative spread of {loss.replace('_', ' ')} over rank counts": spread(runs, loss)
             for loss in ("training_loss", "validation_loss")}
    lines = [f"{what}: {value:.1e}" for what, value in found.items() if value is not None]
    for kind in STUDIES:
        shares = efficiency(runs, kind)
        if len(shares) > 1:
            lines.append(f"{kind} scaling, efficiency: "
                         + ", ".join(f"{100 * share:.1f} % on {n}" for n, share in shares.items()))
    carried = {}
    for run in runs:
        if "transport" in run:
            carried.setdefault(run["transport"], []).append(run["part"])
    return lines + [f"tensors travelled through {name}: {', '.join(dict.fromkeys(parts))}"
                    for name, parts in carried.items()]


def cell(run, key, factor, how):
    value = run.get(key)
    return "" if value is None or (key == "wall_seconds" and run["exit_code"] is None) else format(value * factor, how)


def table(facts, runs):
    lines = ["# Measurement of a node", "", *(f"- {name}: {value}" for name, value in facts), "",
             f"| part | run | ranks | result | {' | '.join(COLUMNS)} |", "|---" * (4 + len(COLUMNS)) + "|"]
    for run in runs:
        cells = [run["part"], run["run"], str(run["ranks"] or ""), run["result"],
                 *(cell(run, *column) for column in COLUMNS.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in findings(runs)), f"- {LEGEND}", ""])


def main():
    folder = parse_arguments().folder
    facts, runs = read_rows(folder / "facts.tsv", 2), read_runs(folder)
    text = table(facts, runs)
    tool.write(folder / "table.md", text)
    losses = {loss: spread(runs, loss) for loss in ("training_loss", "validation_loss")}
    shares = {kind: efficiency(runs, kind) for kind in STUDIES}
    tool.write(folder / "node.json", json.dumps({"facts": dict(facts), "runs": runs, "relative_spread": losses,
                                                 "efficiency": shares}, indent=2) + "\n")
    tool.say(text)
    return tool.NOT_DONE if any(run["result"].startswith("FAILED") for run in runs) else 0


if __name__ == "__main__":
    tool.run(main)
