#!/usr/bin/env python3
"""Makes the tables of docs/accuracy.md from the single runs in docs/data/*.csv: make_tables.py [--check].

A table stands between the lines <!-- table: NAME --> and <!-- end of table -->. With --check nothing is written, and the
exit code is 1 where a page does not have what this script makes. Standard library only.
"""

import argparse
import csv
import re
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

DATA = Path(__file__).resolve().parent
PAGES = [DATA.parent / "accuracy.md"]
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(\n<!-- end of table -->)", re.DOTALL)
PLAIN_DECK = "the deck"
WITHOUT = "without XSA and composed heads"


def read(name, folder=DATA):
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def read_runs(folder=DATA):
    """Runs with their validation losses by step."""
    runs = read("runs.csv", folder)
    by_name = {run["run"]: run | {"losses": {}} for run in runs}
    for row in read("losses.csv", folder):
        by_name[row["run"]]["losses"][int(row["step"])] = Decimal(row["validation_loss"])
    return list(by_name.values())


# --- Statistics -------------------------------------------------------------------------------------------------------


def mean(values):
    return sum(values) / len(values)


def standard_error(values):
    center = mean(values)
    return (sum((value - center) ** 2 for value in values) / (len(values) - 1) / len(values)).sqrt()


def four_digits(value):
    return f"{value:.4f}"


def signed(value):
    return f"{value:+.4f}"


def spread(values):
    return f"{min(values)} to {max(values)}" if len(values) > 1 else ""


# --- Tables -----------------------------------------------------------------------------------------------------------


def table(header, rows):
    lines = ["".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def same_text(runs):
    """Mean and spread of both programs at each step that both have validated; only runs with in_means = yes."""
    groups = defaultdict(lambda: {"PyTorch": [], "nanorun": []})
    for run in runs:
        for step, loss in run["losses"].items():
            if run["in_means"] == "yes" and step > 0:
                groups[run["record"], run["variant"], run["steps"], step][run["program"]].append(loss)
    rows = []
    for (record, variant, steps, step), losses in groups.items():
        script, nanorun = losses["PyTorch"], losses["nanorun"]
        if not script or not nanorun:
            continue
        of = f"{record}{' ' if variant.startswith('without') else ', '}{variant}" if variant else record
        rows.append([of, f"{step} of {steps}", str(len(script)), four_digits(mean(script)), spread(script),
                     str(len(nanorun)), four_digits(mean(nanorun)), spread(nanorun),
                     signed(mean(nanorun) - mean(script))])
    return table(["record", "step", "PyTorch: runs", "mean", "spread", "nanorun: runs", "mean", "spread",
                  "difference of the means"], rows)


def losses_by_parameters(runs, program, variant, commits, step):
    """Mean loss by the initial parameters of the script. A row that is a mean of runs stands for them."""
    found, means = defaultdict(list), {}
    for run in runs:
        chosen = (run["record"], run["program"], run["variant"], run["steps"]) == ("89", program, variant, "500")
        if chosen and run["commit"] in commits and run["parameters"].startswith("manual_seed") and step in run["losses"]:
            if int(run["runs"]) > 1:
                means[run["parameters"]] = run["losses"][step]
            else:
                found[run["parameters"]].append(run["losses"][step])
    return {parameters: mean(losses) for parameters, losses in found.items()} | means


def same_start(runs):
    """Losses of both programs from the same initial parameters."""
    rows = []
    for variant, commits, step in (("", ("04874eb",), 500), ("MLP in bf16", ("2ac19e8",), 500),
                                   (WITHOUT, ("04874eb",), 375), (WITHOUT, ("04874eb",), 500),
                                   (WITHOUT, ("836766d", "2cb08cf"), 500)):
        script = losses_by_parameters(runs, "PyTorch", variant, ("",), step)
        nanorun = losses_by_parameters(runs, "nanorun", variant, commits, step)
        both = [name for name in nanorun if name in script]
        differences = [nanorun[name] - script[name] for name in both]
        rows.append([variant or PLAIN_DECK, " and ".join(commits), str(step), str(len(both)),
                     four_digits(mean([script[name] for name in both])),
                     four_digits(mean([nanorun[name] for name in both])), signed(mean(differences)),
                     four_digits(standard_error(differences))])
    return table(["model", "commit of nanorun", "step", "sets of parameters", "script", "nanorun", "mean difference",
                  "its standard error"], rows)


def ranks(runs):
    """One training on several numbers of GPUs, beside another seed: the loss at the end."""
    rows = []
    for run in runs:
        if run["parameters"] in ("one seed", "another seed"):
            step = max(run["losses"])
            rows.append([run["record"], run["sequences"], run["machine"], run["parameters"], str(step),
                         str(run["losses"][step])])
    return table(["record", "sequences per step", "GPUs", "seed", "step", "validation loss"], rows)


MAKERS = {"same_text": same_text, "same_start": same_start, "ranks": ranks}


def with_tables(text, runs):
    """A page with its tables made anew."""
    return TABLE.sub(lambda found: f"{found[1]}\n{MAKERS[found[2]](runs)}\n{found[3]}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is not current")
    arguments = parser.parse_args()
    runs = read_runs()
    stale = [page for page in PAGES if with_tables(page.read_text(), runs) != page.read_text()]
    for page in stale:
        if arguments.check:
            print(f"{page}: the tables are stale; renew them with: {sys.argv[0]}", file=sys.stderr)
        else:
            page.write_text(with_tables(page.read_text(), runs))
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
