#!/usr/bin/env python3
"""Makes tables of the pages of docs from docs/data/*.csv: make_tables.py [--check].

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
PAGES = [DATA.parent / name for name in ("accuracy.md", "agreement.md", "batch_sizes.md")]
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(\n<!-- end of table -->)", re.DOTALL)
PLAIN_DECK = "the deck"
WITHOUT = "without XSA and composed heads"
READ_ONCE = "text read once"


def read(name, folder=DATA):
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def read_all(folder=DATA):
    """The rows of each file by its name without .csv; runs have their validation losses by step."""
    data = {path.stem: read(path.name, folder) for path in sorted(folder.glob("*.csv"))}
    by_name = {run["run"]: run | {"losses": {}} for run in data["runs"]}
    for row in data["losses"]:
        by_name[row["run"]]["losses"][int(row["step"])] = Decimal(row["validation_loss"])
    return data | {"runs": list(by_name.values())}


# --- Statistics -------------------------------------------------------------------------------------------------------


def mean(values):
    return sum(values) / len(values)


def variance(values):
    center = mean(values)
    return sum((value - center) ** 2 for value in values) / (len(values) - 1)


def standard_deviation(values):
    return variance(values).sqrt()


def standard_error(values):
    return (variance(values) / len(values)).sqrt()


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


def same_text(data):
    """Mean and spread of both programs at each step that both have validated; only runs with in_means = yes."""
    groups = defaultdict(lambda: {"PyTorch": [], "nanorun": []})
    for run in data["runs"]:
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


def losses_by_parameters(runs, program, record, variant, commits, step):
    """Mean loss by the initial parameters of the script. A row that is a mean of runs stands for them."""
    found, means = defaultdict(list), {}
    for run in runs:
        chosen = (run["record"], run["program"], run["variant"], run["steps"]) == (record, program, variant, "500")
        if chosen and run["commit"] in commits and run["parameters"].startswith("manual_seed") and step in run["losses"]:
            if int(run["runs"]) > 1:
                means[run["parameters"]] = run["losses"][step]
            else:
                found[run["parameters"]].append(run["losses"][step])
    return {parameters: mean(losses) for parameters, losses in found.items()} | means


def same_start(data):
    """Losses of both programs from the same initial parameters."""
    runs, rows = data["runs"], []
    for record, variant, commits, step in (("89", "", ("04874eb",), 500), ("89", "MLP in bf16", ("2ac19e8",), 500),
                                           ("89", WITHOUT, ("04874eb",), 375), ("89", WITHOUT, ("04874eb",), 500),
                                           ("89", WITHOUT, ("836766d", "2cb08cf"), 500),
                                           ("89", READ_ONCE, ("06f8f4d",), 500),
                                           ("349", "", ("9aee27c", "1f6abbc"), 500)):
        script = losses_by_parameters(runs, "PyTorch", record, variant, ("",), step)
        nanorun = losses_by_parameters(runs, "nanorun", record, variant, commits, step)
        both = [name for name in nanorun if name in script]
        differences = [nanorun[name] - script[name] for name in both]
        rows.append([record, variant or PLAIN_DECK, " and ".join(commits), str(step), str(len(both)),
                     four_digits(mean([script[name] for name in both])),
                     four_digits(mean([nanorun[name] for name in both])), signed(mean(differences)),
                     four_digits(standard_error(differences))])
    return table(["record", "model", "commit of nanorun", "step", "sets of parameters", "script", "nanorun",
                  "mean difference", "its standard error"], rows)


def ranks(data):
    """One training on several numbers of GPUs, beside another seed: the loss at the end."""
    rows = []
    for run in data["runs"]:
        if run["parameters"] in ("one seed", "another seed"):
            step = max(run["losses"])
            rows.append([run["record"], run["sequences"], run["machine"], run["parameters"], str(step),
                         str(run["losses"][step])])
    return table(["record", "sequences per step", "GPUs", "seed", "step", "validation loss"], rows)


def seeds(data):
    """Ends of record 89 with run.seed 1 to 3 beside all runs of the script."""
    rows = []
    for variant in ("", "MLP in bf16", WITHOUT):
        of = [run for run in data["runs"] if run["in_means"] == "yes" and run["steps"] == "500" and
              (run["record"], run["variant"]) == ("89", variant) and 500 in run["losses"]]
        nanorun = [run["losses"][500] for run in of if run["parameters"].startswith("run.seed")]
        script = [run["losses"][500] for run in of if run["program"] == "PyTorch"]
        rows.append([variant or PLAIN_DECK, four_digits(mean(nanorun)), four_digits(mean(script)),
                     four_digits(standard_deviation(script)), signed(mean(nanorun) - mean(script))])
    return table(["model", "`run.seed` 1 to 3, mean", "script, mean", "its standard deviation",
                  "difference of the means"], rows)


def removed_differences(data):
    """Ends of record 89 from the script's parameters 1 to 3 where nanorun keeps tensors in the script's formats."""
    rows = []
    for name, variant in (("none", WITHOUT), ("nets' biases in bf16", f"{WITHOUT}; the nets' biases in bf16"),
                          ("tables' moments in fp32", f"{WITHOUT}; the tables' moments in fp32")):
        chosen = {run["parameters"]: run for run in data["runs"]
                  if run["commit"] == "836766d" and run["variant"] == variant and run["steps"] == "500"}
        losses = [run["losses"][500] for run in chosen.values()]
        rows.append([name, str(sum(int(run["runs"]) for run in chosen.values())), four_digits(mean(losses))])
    return table(["difference removed", "runs", "mean loss"], rows)


def first_steps(data):
    """Largest differences of training losses in 20 steps over pairs of runs."""
    return table(["pairs", "number", "least", "mean", "largest"],
                 [[row["pairs"], row["number"], row["least"], row["mean"], row["largest"]]
                  for row in data["first_step_pairs"]])


def reference89(data):
    """Largest differences from the independent implementation."""
    found = defaultdict(dict)
    for row in data["reference89"]:
        found[row["quantity"]][f"record {row['record']}{', ' if row['start'] else ''}{row['start']}"] = row["value"]
    columns = list(next(iter(found.values())))
    return table(["difference in", *columns],
                 [[quantity, *(values[column] for column in columns)] for quantity, values in found.items()])


def evaluations(data):
    """The same weights in both programs."""
    return table(["weights", "text", "script", "nanorun", "commit"],
                 [[row["weights"], row["text"], row["script"], row["nanorun"], row["commit"]]
                  for row in data["evaluations"]])


def machines(data):
    """Single trainings on several numbers of ranks and in both builds."""
    return table(["training", "on", "quantity", "value"],
                 [[row["training"], row["machine"], row["quantity"], row["value"]] for row in data["machines"]])


def gradient_formats(data):
    """Ends of record 21 by the format in which gradients travel, and what a step sends."""
    rows = []
    for row in data["gradient_formats"]:
        losses = [run["losses"][500] for run in data["runs"] if (run["commit"], run["machine"]) == (
            row["commit"], row["machine"]) and (run["sequences"], run["variant"]) == ("4", row["variant"])]
        rows.append([row["format"], str(len(losses)), four_digits(mean(losses)), spread(losses),
                     f"{row['sent_gib']} GiB", f"{row['collectives_ms']} ms, {row['hidden_percent']} % hidden",
                     f"{row['step_ms']} ms"])
    return table(["`comm.gradients`", "runs", "validation loss, mean", "spread", "sent per rank and step", "collectives",
                  "step, mean"], rows)


def exported_models(data):
    """Losses of exported models in transformers and in nanorun eval."""
    return table(["deck", "loss in transformers", "in `nanorun eval`", "difference", "ids", "text"],
                 [[f"record {row['record']}", row["transformers"], row["nanorun_eval"],
                   f"{float(Decimal(row['transformers']) - Decimal(row['nanorun_eval'])):+.1e}".replace("e-0", "e-"),
                   row["ids"], row["text"]] for row in data["exported_models"]])


def batch_sizes(data):
    """Losses after the same tokens by sequences per step, each with two seeds."""
    losses, steps = defaultdict(list), defaultdict(set)
    for row in data["batch_sizes"]:
        sequences = Decimal(row["sequences"])
        losses[sequences, row["rates"]].append(row["validation_loss"])
        steps[sequences].add(row["steps"])
    rows = [[str(sequences), str(sequences * 32768), ", ".join(sorted(steps[sequences])),
             ", ".join(losses[sequences, "unchanged"]),
             ", ".join(losses[sequences, "square root"]) or "as unchanged"] for sequences in sorted(steps)]
    return table(["sequences per step", "tokens per step, mean", "steps", "loss with unchanged rates",
                  "with rates by the square root"], rows)


MAKERS = {maker.__name__: maker for maker in (
    same_text, seeds, same_start, removed_differences, first_steps, reference89, evaluations, ranks, machines,
    gradient_formats, exported_models, batch_sizes)}


def with_tables(text, data):
    """A page with its tables made anew."""
    return TABLE.sub(lambda found: f"{found[1]}\n{MAKERS[found[2]](data)}\n{found[3]}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is not current")
    arguments = parser.parse_args()
    data = read_all()
    stale = [page for page in PAGES if with_tables(page.read_text(), data) != page.read_text()]
    for page in stale:
        if arguments.check:
            print(f"{page}: the tables are stale; renew them with: {sys.argv[0]}", file=sys.stderr)
        else:
            page.write_text(with_tables(page.read_text(), data))
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
