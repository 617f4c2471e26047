"""What the runs of a node say together: efficiencies on several ranks, spread of the losses, error of the model."""

import itertools

import tool

from .runs import STUDIES
from .steps import model_errors

LOSSES = ("training_loss", "validation_loss")


def series_of(run):
    """The series of a run: its deck, part and kind of scaling. Runs of one series differ only in their ranks."""
    kind = run["part"] if run["part"] in STUDIES else run["run"]
    return (run["deck"], run["part"], kind) if kind in STUDIES and "stages" in run else None


def spread(runs, loss):
    """(most - least) / least of the losses; None with fewer than two."""
    values = [run[loss] for run in runs if run.get(loss) is not None]
    return (max(values) - min(values)) / min(values) if len(values) > 1 else None


def efficiency(steps, kind):
    """Efficiency by rank count, from step times by rank count. Weak scaling compares times, strong scaling times by
    ranks."""
    least = min(steps)
    return {n: steps[least] / time * (least / n if kind == "strong" else 1) for n, time in steps.items()}


def scaling(runs):
    """For each series on several rank counts: the efficiencies of its stages, and the spread of the losses if the work
    is the same on all of them. The part `losses` has no efficiencies, since its windows grow."""
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
    """Lines that say how well the model of each study predicts its steps, if the modules for that are there."""
    lines = []
    for run in runs:
        if run["run"] != "report" or run["result"] != "ok":
            continue
        try:
            errors = model_errors(folder / f"{run['deck']}.{run['part']}.toml", folder / "report" / run["deck"])
        except tool.ToolError as error:
            lines.append(f"{run['deck']} {run['part']}, error of the model is missing: {error}")
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
