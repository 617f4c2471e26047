"""What jobscripts/measure_node.sh has noted of its runs in runs.tsv, and what they have left: results and figures."""

import math
import re

import tool

from .steps import add_phases, read_stages

STUDIES = ("strong", "weak")
TRANSPORT = re.compile(r"^device .* tensors travel through (.*)$", re.MULTILINE)
# Keys of summary.json, by the names that they have here.
FIGURES = {"steps": "steps", "tokens_per_second": "tokens_per_second", "first_step_seconds":
           "time_to_first_step_seconds", "training_seconds": "train_seconds", "training_loss": "final_train_loss",
           "validation_loss": "final_val_loss"}


def read_rows(path, columns):
    """Lists of the fields, separated by tabs, of a file's lines."""
    rows = [line.split("\t") for line in tool.read_text(path).splitlines()]
    if any(len(row) != columns for row in rows):
        raise tool.ToolError(f"{path}: a line has not {columns} fields")
    return rows


def output_folder(folder, run):
    """Output directory of a training run, in a study or on its own."""
    if run["part"] in STUDIES:
        return folder / "report" / run["deck"] / run["part"] / run["run"]
    return folder / "runs" / f"{run['deck']}.{run['part']}.{run['run']}.{run['ranks']}"


def log_file(folder, run):
    """The file that says how a run went: the output of the program, or in a study, of a report or of a run that has not
    started, of scaling_study.py."""
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
    """Why a run failed, from its log: which rank a signal has ended, by mpirun; or the last message of a program; or
    the last line that is no ruler."""
    lines = [line for line in read_log(log).splitlines() if line.strip(" -")]
    killed = [line for line in lines if " noticed that process rank " in line]
    said = killed or [line for line in lines if re.match(r"(nanorun|scaling_study\.py): ", line)] or lines
    return tool.one_line(said[-1])[:120].replace("|", "/") if said else ""


def read_log(log):
    return log.read_text(errors="replace") if log.is_file() else ""


def judge_tests(run, log):
    """The result of a test program or script that has ended with exit code 0, or 77 for skipped."""
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
    """The result of a run in words; adds its figures to `run`."""
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
