#!/usr/bin/env python3
"""Measures on CPUs how a run grows with its ranks: start, first step, checkpoint, restart, memory, files, messages.

On each number of ranks a tiny model is trained for some steps, stopped with a checkpoint, and continued. Where ranks share
cores, only processor seconds, memory, files and messages say something of larger machines. Prints one line for each number
of ranks, and at last a fit a + b P of what is linear. Needs numpy."""

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
           "between": "messages of a rank and step between nodes"}
LINEAR = ("cpu", "memory", "open", "files")


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
    sent = summary.get("sent", {"inside": {"messages": 0}, "between": {"messages": 0}})
    return {"cpu": processor_seconds() - begin, "continued": summary["time_to_first_step_seconds"],
            "memory": summary["peak_memory_bytes"] / 2**20, "inside": sent["inside"]["messages"],
            "between": sent["between"]["messages"]}


def measure(folder, ranks, per_node):
    run = folder / "outputs" / f"ranks{ranks}"
    overrides = ("train.steps=1000000", f"train.sequences={ranks}", f"comm.ranks_per_node={per_node}",
                 f"run.name={run.name}")
    step, figures = first_job(folder, run, ranks, overrides)
    return figures | continued_job(folder, run, ranks, overrides, step)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--ranks-per-node", type=int, default=8)
    arguments = parser.parse_args()
    small_run.PROGRAM, small_run.MPIRUN = str(arguments.program.resolve()), arguments.mpirun
    os.environ["OMPI_MCA_mpi_yield_when_idle"] = "1"
    for name, meaning in COLUMNS.items():
        print(f"{name:>10}  {meaning}")
    print("ranks", *(f"{name:>10}" for name in COLUMNS))
    rows = []
    with tempfile.TemporaryDirectory(prefix="nanorun-growth-") as folder:
        (Path(folder) / "deck.toml").write_text(DECK)
        write_permutations(Path(folder))
        for ranks in arguments.ranks:
            rows.append(measure(Path(folder), ranks, arguments.ranks_per_node))
            print(f"{ranks:5}", *(f"{rows[-1][name]:10.4g}" for name in COLUMNS), flush=True)
    if len(rows) > 2:
        for name in LINEAR:
            slope, constant = np.polyfit(arguments.ranks, [row[name] for row in rows], 1)
            print(f"{name} = {constant:.4g} + {slope:.4g} P")


if __name__ == "__main__":
    main()
