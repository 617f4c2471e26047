#!/usr/bin/env python3
"""Draws a run's losses and where its time went.

Reads trace.h5 and, where the run has ended, summary.json of a run's output folder; writes one PNG and prints its path.
"""

import argparse
import io
import os
import pathlib

import tool

COMMUNICATION = {"reduce_gradients", "gather_weights", "agree"}
OCCASIONAL = {"validation", "checkpoint", "output"}
# Of trace.h5, with their dimensions.
DATASETS = {"step": 1, "ranks": 1, "tokens": 1, "loss": 1, "seconds": 3, "communication": 2, "validation_step": 1,
            "validation_loss": 1}
INK, FAINT, ACCENT = "#22303c", "#c9d1d9", "#d1495b"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="output folder of a run, for example outputs/quickstart")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="PNG to write (default: FOLDER/run.png)")
    return tool.parse(parser)


def read_datasets(path):
    """The datasets of a trace.h5 as arrays, and its phases. Throws ToolError."""
    import h5py

    tool.require_regular(path)
    with tool.using(path, KeyError, RuntimeError, TypeError, ValueError, AttributeError, kind="a trace"):
        with h5py.File(path, "r") as file:
            size = os.path.getsize(path)
            for name, dimensions in DATASETS.items():
                if not isinstance(file[name], h5py.Dataset) or file[name].ndim != dimensions:
                    raise ValueError(f"/{name} is no dataset of {dimensions} dimensions")
                # Where no data are stored HDF5 would make them up, of whatever size a damaged file gives.
                if file[name].dtype.kind not in "iuf" or int(file[name].size) * file[name].dtype.itemsize > size:
                    raise ValueError(f"/{name} cannot be of that type and shape")
            trace = {name: file[name][...] for name in DATASETS}
            phases = file.attrs["phases"]
            return trace, (phases.decode() if isinstance(phases, bytes) else phases).split(",")


# Least and most of what a dataset may hold; losses may be no numbers too.
BOUNDS = {"step": (0, 2**53), "validation_step": (0, 2**53), "tokens": (1, 1e15), "seconds": (0, 1e9),
          "communication": (0, 1e12)}
LARGEST_LOSS = 1e30


def fault(trace, phases):
    """What cannot be in a trace, or None."""
    import numpy as np

    steps, columns = len(trace["step"]), trace["seconds"].shape[1]
    if not COMMUNICATION | OCCASIONAL | {"data", "forward", "other"} <= set(phases) or len(set(phases)) < len(phases):
        return "the phases are those of another program"
    shapes = dict.fromkeys(("step", "ranks", "tokens", "loss"), (steps,))
    shapes |= {"seconds": (steps, columns, len(phases)), "communication": (steps, columns),
               "validation_step": trace["validation_loss"].shape}
    for name, shape in shapes.items():
        if trace[name].shape != shape:
            return f"/{name} has not the length of the others"
    for name, (least, most) in (BOUNDS | {"ranks": (1, columns)}).items():
        if not np.all((trace[name] >= least) & (trace[name] <= most)):
            return f"/{name} holds what cannot be"
    for name in ("loss", "validation_loss"):
        if np.any(np.isfinite(trace[name]) & (np.abs(trace[name]) > LARGEST_LOSS)):
            return f"/{name} holds what cannot be"
    if np.any(np.diff(trace["step"]) <= 0):
        return "/step does not ascend"
    return "/seconds holds no time" if steps and not np.any(trace["seconds"]) else None


def read_trace(path):
    """The datasets of a trace.h5, /seconds masked where a rank took no part in a step, and its phases.

    Throws ToolError.
    """
    import numpy as np

    trace, phases = tool.read_apart(read_datasets, path)
    wrong = fault(trace, phases)
    if wrong:
        raise tool.ToolError(f"{path}: not a trace: {wrong}")
    trace["phases"] = phases
    columns = np.arange(trace["seconds"].shape[1])
    absent = columns[None, :] >= trace["ranks"][:, None]
    trace["seconds"] = np.ma.array(trace["seconds"], mask=np.repeat(absent[:, :, None], len(phases), axis=2))
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
        middle = np.convolve(step, np.ones(window) / window, mode="valid")
        axes.plot(middle, smooth, color=INK, linewidth=1.8, label=f"training, mean of {window} steps")
    if len(trace["validation_step"]):
        axes.plot(trace["validation_step"], trace["validation_loss"], "o-", color=ACCENT, markersize=5, linewidth=1.5,
                  label="validation")
        last = trace["validation_step"][-1], trace["validation_loss"][-1]
        axes.annotate(f"{last[1]:.4f}", last, xytext=(7, 0), textcoords="offset points", va="center", color=ACCENT,
                      fontweight="bold")
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
    shown = [i for i in range(len(mean)) if mean[i] > 0] or [0]
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
    path = folder / "summary.json"
    if os.path.lexists(path):
        merits = tool.read_json(path)
        parts.append(f"{tool.field(merits, 'tokens_per_second', float, path):,.0f} tokens/s")
        parts.append(f"{tool.field(merits, 'train_seconds', float, path):,.1f} s of training")
    return "  ·  ".join(parts)


def plain(text):
    """Text as matplotlib draws it, without mathematics and bytes that are no text."""
    return text.encode(errors="replace").decode().replace("$", r"\$")


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
    figure.suptitle(plain(f"{folder.resolve().name}:  {heading(folder, trace)}"), x=0.012, ha="left", fontsize=12)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    tool.write(output, picture.getvalue())


def main():
    arguments = parse_arguments()
    tool.need("numpy", "h5py", "matplotlib")
    path = arguments.folder / "trace.h5"
    trace = read_trace(path)
    if len(trace["step"]) == 0:
        raise tool.ToolError(f"{path}: no steps yet", tool.NOT_DONE)
    output = arguments.output or arguments.folder / "run.png"
    draw(arguments.folder, trace, output)
    tool.say(output)


if __name__ == "__main__":
    tool.run(main)
