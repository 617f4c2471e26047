#!/usr/bin/env python3
"""Measures on CPUs how a run grows with its ranks: start, first step, checkpoint, restart, memory, files, messages.

On each number of ranks a tiny model is trained for some steps, stopped with a checkpoint, and continued. Prints one line
for each number of ranks, and at last formulas that fit them. With --table, fits the lines of an earlier call. Needs
numpy."""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "fault"))
from harness import Job, small_run  # noqa: E402
from test_layouts import DECK, write_permutations  # noqa: E402

COLUMNS = {"cpu": "processor seconds of the continued job on all ranks: start, restart, four steps, checkpoint",
           "first": "seconds to the end of the first step", "step": "seconds of the median step after it",
           "save": "seconds of the checkpoint", "continued": "seconds to the end of the first step of the continued job",
           "memory": "MiB of host memory of the rank that has most", "open": "most files of the run that a rank has open",
           "files": "files in the run's directory while it runs", "inside": "messages of a rank and step inside its node",
           "inside_bytes": "their bytes", "between": "messages of a rank and step between nodes",
           "between_bytes": "their bytes"}
# On P ranks and C cores. Ranks that wait for others keep their cores busy, so that processor seconds are those of busy
# cores, times a time.
TERMS = {"1": lambda P, C: P**0, "P": lambda P, C: P, "log2(P)": lambda P, C: np.log2(P),
         "max(0, P - C)": lambda P, C: np.maximum(0, P - C), "min(P, C)": lambda P, C: np.minimum(P, C),
         "min(P, C) P": lambda P, C: np.minimum(P, C) * P,
         "min(P, C) max(0, P - C)": lambda P, C: np.minimum(P, C) * np.maximum(0, P - C)}
TIME = ("1", "P", "max(0, P - C)")
FORMULAS = {"cpu": ("1", "min(P, C)", "min(P, C) P", "min(P, C) max(0, P - C)"), "first": TIME, "step": TIME, "save": TIME,
            "continued": TIME, "memory": ("1", "log2(P)")}


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def open_files(pids, folder):
    """Most files below the folder that a process has open."""
    counts = []
    for pid in pids:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
        counts.append(sum(link.startswith(str(folder)) for link in links))
    return max(counts)


def first_job(folder, run, ranks, overrides):
    """Stopped after some steps, once its files have been seen."""
    job = Job(folder, ranks, ["train", "deck.toml", *overrides])
    job.until_step(3)
    figures = {"open": open_files(job.rank_pids(), run), "files": sum(path.is_file() for path in run.rglob("*"))}
    (run / "stop").touch()
    if job.wait() != 75:
        sys.exit(job.text())
    summary = json.loads((run / "summary.json").read_text())
    times = [json.loads(line)["ms"] / 1000 for line in (run / "metrics.jsonl").read_text().splitlines()]
    return summary["steps"], figures | {"first": summary["time_to_first_step_seconds"],
                                        "step": statistics.median(times[1:]),
                                        "save": summary["phases"]["checkpoint"]["max_seconds"]}


def continued_job(folder, run, ranks, overrides, step):
    """It makes all its steps: mpirun adds up the processor seconds of ranks that end with exit code 0 alone."""
    begin = processor_seconds()
    job = Job(folder, ranks, ["train", "deck.toml", *overrides, f"train.steps={step + 4}"])
    if job.wait() != 0:
        sys.exit(job.text())
    summary = json.loads((run / "summary.json").read_text())
    nothing = {"messages": 0, "bytes": 0}
    inside, between = (summary.get("sent", {}).get(level, nothing) for level in ("inside", "between"))
    return {"cpu": processor_seconds() - begin, "continued": summary["time_to_first_step_seconds"],
            "memory": summary["peak_memory_bytes"] / 2**20, "inside": inside["messages"],
            "inside_bytes": inside["bytes"], "between": between["messages"], "between_bytes": between["bytes"]}


def measure(folder, ranks, per_node):
    run = folder / "outputs" / f"ranks{ranks}"
    overrides = ("train.steps=1000000", f"train.sequences={ranks}", f"comm.ranks_per_node={per_node}",
                 f"run.name={run.name}")
    step, figures = first_job(folder, run, ranks, overrides)
    return figures | continued_job(folder, run, ranks, overrides, step)


def fitted(name, rows, cores):
    """A column's formula and the largest error that it makes, by least squares of relative errors. The first job of a call
    is left out where others are enough: the system may read the program for it from the disk."""
    terms = FORMULAS[name]
    rows = [row for row in rows if row["ranks"] > 1] if len(rows) > len(terms) + 1 else rows
    if len(rows) <= len(terms):
        return f"{name}: {len(rows)} rows are too few for a formula of {len(terms)} terms"
    ranks, values = (np.array([float(row[key]) for row in rows]) for key in ("ranks", name))
    shares = np.stack([TERMS[term](ranks, cores) for term in terms], axis=1) / values[:, None]
    factors = np.linalg.lstsq(shares, np.ones(len(rows)), rcond=None)[0]
    text = " + ".join(f"{factor:.3g}" if term == "1" else f"{factor:.3g} {term}"
                      for factor, term in zip(factors, terms) if factor)
    return (f"{name} = {text}, from {ranks[0]:.0f} to {ranks[-1]:.0f} ranks within "
            f"{100 * np.abs(shares @ factors - 1).max():.0f} %")


def measured(arguments):
    """Prints a line for each number of ranks; returns them as dictionaries."""
    small_run.PROGRAM, small_run.MPIRUN = str(arguments.program.resolve()), arguments.mpirun
    os.environ["OMPI_MCA_mpi_yield_when_idle"] = "1"
    for name, meaning in COLUMNS.items():
        print(f"{name:>13}  {meaning}")
    print("ranks", *(f"{name:>13}" for name in COLUMNS))
    rows = []
    with tempfile.TemporaryDirectory(prefix="nanorun-growth-") as folder:
        (Path(folder) / "deck.toml").write_text(DECK)
        write_permutations(Path(folder))
        for ranks in arguments.ranks:
            rows.append({"ranks": ranks} | measure(Path(folder), ranks, arguments.ranks_per_node))
            print(f"{ranks:5}", *(f"{rows[-1][name]:13.5g}" for name in COLUMNS), flush=True)
    return rows


def rows_of(text):
    """The lines of an earlier call."""
    lines = [line.split() for line in text.splitlines()]
    names = next(words for words in lines if words[:1] == ["ranks"])
    return [dict(zip(names, map(float, words))) for words in lines if words and words[0].isdigit()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, nargs="?", help="nanorun")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="of the machine")
    parser.add_argument("--table", type=Path, help="what an earlier call has printed, in place of a program")
    arguments = parser.parse_args()
    if (arguments.program is None) == (arguments.table is None):
        parser.error("needs a program or --table")
    rows = rows_of(arguments.table.read_text()) if arguments.table else measured(arguments)
    print(f"On P ranks, C = {arguments.cores} cores:")
    for name in FORMULAS:
        print(fitted(name, rows, arguments.cores))


if __name__ == "__main__":
    main()
