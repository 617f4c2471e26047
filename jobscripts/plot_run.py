#!/usr/bin/env python3
"""Draws a run's losses and where its time went.

Reads trace.h5 and, where the run has ended, summary.json of a run's output folder; writes one PNG and prints its path.
"""

import argparse
import json
import pathlib
import sys

COMMUNICATION = {"reduce_gradients", "gather_weights", "agree"}
OCCASIONAL = {"validation", "checkpoint", "output"}
INK, FAINT, ACCENT = "#22303c", "#c9d1d9", "#d1495b"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="output folder of a run, for example outputs/quickstart")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="PNG to write (default: FOLDER/run.png)")
    return parser.parse_args()


def read_trace(path):
    import h5py
    import numpy as np

    with h5py.File(path, "r") as file:
        trace = {name: file[name][...] for name in file}
        phases = file.attrs["phases"]
    trace["phases"] = (phases.decode() if isinstance(phases, bytes) else phases).split(",")
    columns = np.arange(trace["seconds"].shape[1])
    absent = columns[None, :] >= trace["ranks"][:, None]  # ranks that took no part in a step
    trace["seconds"] = np.ma.array(trace["seconds"], mask=np.repeat(absent[:, :, None], len(trace["phases"]), axis=2))
    return trace


def colours(phases):
    """Blues for computing, oranges for communication, greys for the rest."""
    from matplotlib import colormaps

    compute = [p for p in phases if p not in COMMUNICATION | OCCASIONAL | {"data", "other"}]
    groups = [
        (compute, "Blues", 0.85, 0.35),
        ([p for p in phases if p in COMMUNICATION], "Oranges", 0.75, 0.35),
        ([p for p in phases if p in OCCASIONAL | {"data", "other"}], "Greys", 0.65, 0.25),
    ]
    table = {}
    for names, map_name, first, last in groups:
        for i, name in enumerate(names):
            table[name] = colormaps[map_name](first + (last - first) * i / max(1, len(names) - 1))
    return table


def draw_losses(axes, trace):
    import numpy as np

    step, loss = trace["step"], trace["loss"]
    window = max(1, len(loss) // 30)
    axes.plot(step, loss, color=FAINT if window > 1 else INK, linewidth=1, label="training, each step")
    if window > 1:
        smooth = np.convolve(loss, np.ones(window) / window, mode="valid")
        axes.plot(np.convolve(step, np.ones(window) / window, mode="valid"), smooth, color=INK, linewidth=1.8, label=f"training, mean of {window} steps")
    if len(trace["validation_step"]):
        axes.plot(trace["validation_step"], trace["validation_loss"], "o-", color=ACCENT, markersize=5, linewidth=1.5,
                  label="validation")
        axes.annotate(f"{trace['validation_loss'][-1]:.4f}", (trace["validation_step"][-1], trace["validation_loss"][-1]),
                      xytext=(7, 0), textcoords="offset points", va="center", color=ACCENT, fontweight="bold")
    axes.set(title="Loss", xlabel="step", ylabel="cross-entropy (nats per token)")
    axes.set_xlim(0, 1.16 * max(1, step[-1]))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def draw_step_time(axes, trace, colour):
    """Stacked, mean over ranks; validation, checkpoints and output come only now and then and are left out."""
    import numpy as np
    from matplotlib.patches import Patch

    names = [p for p in trace["phases"] if p not in OCCASIONAL]
    columns = [trace["phases"].index(p) for p in names]
    mean = trace["seconds"].mean(axis=1).filled(0)[:, columns] * 1e3
    bins = min(len(mean), 150)
    edges = np.linspace(0, len(mean), bins + 1).astype(int)
    height = np.array([mean[a:b].mean(axis=0) for a, b in zip(edges, edges[1:])])
    begin = np.append(trace["step"][edges[:-1]], trace["step"][-1] + 1)
    floor = np.zeros(bins)
    for i, name in enumerate(names):
        axes.stairs(floor + height[:, i], begin, baseline=floor, fill=True, color=colour[name], linewidth=0)
        floor = floor + height[:, i]
    axes.set(title="Training step", xlabel="step", ylabel="ms, mean over ranks")
    axes.set_xlim(begin[0], begin[-1])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, 1.25 * np.percentile(floor, 95))
    families = {"computing": "forward", "communication": "reduce_gradients", "the rest": "other"}
    axes.legend([Patch(color=colour[phase]) for phase in families.values()], families, ncols=3, frameon=False,
                loc="lower right", bbox_to_anchor=(1.005, 1), borderpad=0.2, handlelength=1, columnspacing=1.2,
                fontsize=8.5)


def draw_phases(axes, trace, colour):
    each = trace["seconds"].mean(axis=0) * 1e3  # [ranks, phases]
    mean, low, high = (f(axis=0).filled(0) for f in (each.mean, each.min, each.max))
    shown = [i for i in range(len(mean)) if mean[i] > 0]
    position = range(len(shown))
    mean, low, high = mean[shown], low[shown], high[shown]
    axes.barh(position, mean, color=[colour[trace["phases"][i]] for i in shown], height=0.72)
    axes.errorbar(mean, position, xerr=[mean - low, high - mean], fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    for y, (value, end) in enumerate(zip(mean, high)):
        axes.annotate(f"{100 * value / mean.sum():.1f} %", (end, y), xytext=(5, 0), textcoords="offset points",
                      va="center", fontsize=8.5)
    axes.set_yticks(list(position), [trace["phases"][i].replace("_", " ") for i in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * high.max())
    axes.set(title="Where the time goes", xlabel="ms per step, mean over ranks (whiskers: least and most)")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def heading(folder, trace):
    parts = [f"{len(trace['step'])} steps", f"{trace['ranks'][-1]} ranks"]
    summary = folder / "summary.json"
    if summary.exists():
        merits = json.loads(summary.read_text())
        parts.append(f"{merits['tokens_per_second']:,.0f} tokens/s")
        parts.append(f"{merits['train_seconds']:,.1f} s of training")
    return "  ·  ".join(parts)


def draw(folder, trace, output):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({
        "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "axes.axisbelow": True, "grid.color": "#eceff2", "xtick.color": INK, "ytick.color": INK,
    })
    figure = plt.figure(figsize=(12, 6.6), dpi=150, layout="constrained")
    figure.get_layout_engine().set(rect=(0.005, 0.005, 0.99, 0.985), h_pad=0.05)
    grid = figure.add_gridspec(2, 2, width_ratios=[1.1, 1], height_ratios=[1, 1.35])
    colour = colours(trace["phases"])
    draw_losses(figure.add_subplot(grid[:, 0]), trace)
    draw_step_time(figure.add_subplot(grid[0, 1]), trace, colour)
    draw_phases(figure.add_subplot(grid[1, 1]), trace, colour)
    name = folder.resolve().name
    figure.suptitle(f"{name}:  {heading(folder, trace)}", x=0.012, ha="left", fontsize=12)
    figure.savefig(output)


def main():
    arguments = parse_arguments()
    path = arguments.folder / "trace.h5"
    if not path.exists():
        sys.exit(f"plot_run.py: {path}: no such file")
    trace = read_trace(path)
    if len(trace["step"]) == 0:
        sys.exit(f"plot_run.py: {path} holds no steps yet")
    output = arguments.output or arguments.folder / "run.png"
    draw(arguments.folder, trace, output)
    print(output)


if __name__ == "__main__":
    main()
