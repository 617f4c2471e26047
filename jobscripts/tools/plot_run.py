#!/usr/bin/env python3
"""Draws a run's losses and where its time went, or with --step the streams of one step.

Reads trace.h5 and, where the run has ended, summary.json of a run's output directory; with --step trace.json, which
holds the steps that the deck lists in trace.json_steps. Writes one PNG and prints its path.
"""

import argparse
import collections
import functools
import io
import os
import pathlib
import sys
import textwrap

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import tool
from trace_file import (COMMUNICATION, EARLIER_NAMES, OCCASIONAL, gaps, mean_over_ranks, missing_rows, read_trace,
                        spread_over_ranks, train_seconds, updates_before)

# Phases of trace.json, in the order in which a legend names them.
PHASES = ["data", "forward", "head", "backward", "reduce_gradients", "muon", "adam", "gather_weights", "sync",
          "validation", "checkpoint", "output", "other"]
# By the name of --against.
AXES = {"steps": "step", "seconds": "seconds of training"}
LONGEST_NAME = 40  # characters that a picture shows of an event or track
INK, FAINT, ACCENT = "#22303c", "#c9d1d9", "#d1495b"
BETWEEN = {"reduce_gradients between nodes": "#a8326e", "gather_weights between nodes": "#d491b5"}
QUANTITIES = {"collectives between nodes": "communication_between"}  # names in a trace of some bars
LEVELS = {"collectives inside nodes": "#e6821e", "collectives between nodes": "#a8326e"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, metavar="DIRECTORY",
                        help="output directory of a run, for example outputs/quickstart")
    parser.add_argument("-o", "--output", type=pathlib.Path,
                        help="PNG to write (default: DIRECTORY/run.png, with --step DIRECTORY/step.png)")
    parser.add_argument("--against", choices=AXES, default="steps",
                        help="what the x axes of losses and step times count (default: %(default)s)")
    parser.add_argument("--step", type=int, help="draw the streams of this step of trace.json")
    parser.add_argument("--rank", type=int, default=0, help="of this rank (default: 0)")
    return tool.parse(parser)


def colours(phases):
    """Blues for computing, oranges for communication, reds for its part between nodes, greys for the rest."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba

    compute = [p for p in phases if p not in COMMUNICATION | OCCASIONAL | {"data", "other"} | set(BETWEEN)]
    groups = [
        (compute, "Blues", 0.85, 0.35),
        ([p for p in phases if p in COMMUNICATION], "Oranges", 0.75, 0.35),
        ([p for p in phases if p in OCCASIONAL | {"data", "other"}], "Greys", 0.65, 0.25),
    ]
    table = {name: to_rgba(BETWEEN[name]) for name in phases if name in BETWEEN}
    for names, map_name, first, last in groups:
        for i, name in enumerate(names):
            table[name] = colormaps[map_name](first + (last - first) * i / max(1, len(names) - 1))
    return table


def places(trace, against):
    """Positions on the x axis of the start of each step and the end of the last one, and of the validations."""
    import numpy as np

    rows = updates_before(trace, trace["validation_step"])
    if against == "steps":
        return np.append(trace["step"], trace["step"][-1] + 1), trace["validation_step"]
    seconds = np.append(0, train_seconds(trace))
    return seconds, seconds[rows]


def draw_losses(axes, trace, against, note=""):
    """Draws the losses. `note` says what the training loss is, where it is not the usual one."""
    import numpy as np

    (*step, _), validations = places(trace, against)
    loss = trace["loss"]
    window = max(1, len(loss) // 30)
    axes.plot(step, loss, color=FAINT if window > 1 else INK, linewidth=1,
              label="training, each step" + (f":\n{note}" if note else ""))
    if window > 1:
        smooth = np.convolve(loss, np.ones(window) / window, mode="valid")
        middle = np.convolve(step, np.ones(window) / window, mode="valid")
        axes.plot(middle, smooth, color=INK, linewidth=1.8, label=f"training, mean of {window} steps")
    end, room = step[-1] or 1, 0.04
    if len(trace["validation_step"]):
        axes.plot(validations, trace["validation_loss"], "o-", color=ACCENT, markersize=5, linewidth=1.5,
                  label="validation")
        last = validations[-1], trace["validation_loss"][-1]
        words = f"{last[1]:.4f}" if abs(last[1]) < 1e4 else f"{last[1]:.4g}"
        end, room = max(end, last[0]), 0.04 + 0.018 * len(words)
        axes.annotate(words, last, xytext=(7, 0), textcoords="offset points", va="center", color=ACCENT,
                      fontweight="bold")
    axes.set(title="Loss", xlabel=AXES[against], ylabel="cross-entropy (nats per token)")
    axes.set_xlim(0, end / (1 - room))
    axes.xaxis.get_major_locator().set_params(integer=against == "steps")
    axes.legend(frameon=False)


def draw_step_time(axes, trace, colour, against):
    """Draws the time per step, stacked by phase, mean over ranks. Validation, checkpoints and output are left out,
    since they come only now and then."""
    import numpy as np
    from matplotlib.patches import Patch

    names = [p for p in trace["phases"] if p not in OCCASIONAL]
    columns = [trace["phases"].index(p) for p in names]
    mean = mean_over_ranks(trace, trace["seconds"])[:, columns] * 1e3
    bins = min(len(mean), 150)
    edges = np.linspace(0, len(mean), bins + 1).astype(int)
    height = np.array([mean[a:b].mean(axis=0) for a, b in zip(edges, edges[1:])])
    begin = places(trace, against)[0][edges]
    floor = np.zeros(bins)
    for i, name in enumerate(names):
        axes.stairs(floor + height[:, i], begin, baseline=floor, fill=True, color=colour[name], linewidth=0)
        floor = floor + height[:, i]
    axes.set(title="Training step", xlabel=AXES[against], ylabel="ms, mean over ranks")
    axes.set_xlim(begin[0], begin[-1] or 1)
    axes.xaxis.get_major_locator().set_params(integer=against == "steps")
    axes.set_ylim(0, 1.25 * np.percentile(floor, 95))
    families = {"computing": "forward", "communication": "reduce_gradients", "the rest": "other"}
    axes.legend([Patch(color=colour[phase]) for phase in families.values()], families, ncols=3, frameon=False,
                loc="lower right", bbox_to_anchor=(1.005, 1), borderpad=0.2, handlelength=1, columnspacing=1.2,
                fontsize=8.5)


def bars_of(trace, colour):
    """The bars of draw_phases, from top to bottom: names, colours, and mean, least and most over the ranks, in seconds
    per step. They are the phases and, where there are several nodes, the collectives, which run beside them."""
    import numpy as np

    names, seconds = list(trace["phases"]), trace["seconds"]
    between = trace["communication_between"]
    if between.any():
        absent = np.ma.getmaskarray(seconds)[:, :, 0]
        levels = [np.ma.array(values, mask=absent) for values in (trace["communication"] - between, between)]
        names, seconds = names + list(LEVELS), np.ma.concatenate([seconds, np.ma.stack(levels, axis=2)], axis=2)
    mean, low, high = spread_over_ranks(trace, [QUANTITIES.get(name, name) for name in names], seconds)
    return names, [(colour | LEVELS)[name] for name in names], mean, low, high


def draw_phases(axes, trace, colour):
    names, colour_of, *seconds = bars_of(trace, colour)
    mean, low, high = (1e3 * values for values in seconds)
    step = mean[:len(trace["phases"])].sum()
    shown = [i for i in range(len(mean)) if mean[i] > 0] or [0]
    position = range(len(shown))
    mean, low, high = mean[shown], low[shown], high[shown]
    axes.barh(position, mean, color=[colour_of[i] for i in shown], height=0.72)
    axes.errorbar(mean, position, xerr=[mean - low, high - mean], fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    for y, (value, end) in enumerate(zip(mean, high)):
        axes.annotate(f"{100 * value / step:.1f} %", (end, y), xytext=(5, 0), textcoords="offset points",
                      va="center", fontsize=8.5)
    axes.set_yticks(list(position), [names[i].replace("_", " ") for i in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * high.max())
    axes.set(title="Where the time goes", xlabel="ms per step, mean over ranks (whiskers: least and most)")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def shade_gaps(axes, trace):
    """Covers the parts of an axis of steps for which there are no rows."""
    for first, end in gaps(trace):
        axes.axvspan(first, end, facecolor="white", edgecolor=FAINT, hatch="///", linewidth=0, zorder=3)


def gaps_of_run(folder, trace):
    """gaps(), up to the last step if the run has ended."""
    path = folder / "summary.json"
    merits = tool.read_json(path) if os.path.lexists(path) else {}
    return gaps(trace, tool.field(merits, "steps", int, path) if "steps" in merits else 0)


def note_of(folder):
    """A note on the training loss, from the run's deck; empty without a deck."""
    import runs

    return runs.weighted_note(runs.read_deck(folder)) if os.path.lexists(folder / "deck.toml") else ""


def heading(folder, trace):
    parts = [f"{len(trace['step'])} steps", f"{trace['ranks'][-1]} ranks"]
    missing = gaps_of_run(folder, trace)
    if missing:
        parts.append(missing_rows(missing))
    path = folder / "summary.json"
    if os.path.lexists(path):
        merits = tool.read_json(path)
        parts.append(f"{tool.field(merits, 'tokens_per_second', float, path):,.0f} tokens/s")
        parts.append(f"{tool.field(merits, 'train_seconds', float, path):,.1f} s of training")
    return "  ·  ".join(parts)


def plain(text):
    """Text as matplotlib should draw it: without mathematics, and bytes that are no text in hexadecimal."""
    return tool.visible(text).replace("$", r"\$")


def wrapped(text, width):
    """plain() text in lines of at most `width` characters."""
    return "\n".join(map(plain, textwrap.wrap(text, width)))


def new_figure(height):
    import matplotlib.pyplot as plt

    plt.rcParams.update({
        "text.usetex": False,
        "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "axes.axisbelow": True, "grid.color": "#eceff2", "xtick.color": INK, "ytick.color": INK,
    })
    figure = plt.figure(figsize=(12, height), dpi=150, layout="constrained")
    figure.get_layout_engine().set(rect=(0.005, 0.005, 0.99, 0.985), h_pad=0.05)
    return figure


def save(figure, title, output):
    figure.suptitle(wrapped(title, 105), x=0.012, ha="left", fontsize=12)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    tool.write(output, picture.getvalue())


def draw(folder, trace, output, against="steps"):
    figure = new_figure(6.6)
    grid = figure.add_gridspec(2, 2, width_ratios=[1.1, 1], height_ratios=[1, 1.35])
    colour = colours(trace["phases"])
    draw_first = functools.partial(draw_losses, note=note_of(folder))
    draw_second = functools.partial(draw_step_time, colour=colour)
    for place, draw_axes in ((grid[:, 0], draw_first), (grid[0, 1], draw_second)):
        axes = figure.add_subplot(place)
        draw_axes(axes, trace, against=against)
        if against == "steps":
            shade_gaps(axes, trace)
    draw_phases(figure.add_subplot(grid[1, 1]), trace, colour)
    save(figure, f"{folder.resolve().name}:  {heading(folder, trace)}", output)


Span = collections.namedtuple("Span", "name track begin end")  # ms since the step began
Step = collections.namedtuple("Step", "length spans tracks")  # ms; spans by their start; names of the tracks by number


def short(name):
    """A name as a picture can show it."""
    return name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME - 3] + "..."


def level_of(event):
    """What the name of an event lacks if it is a collective between nodes."""
    values = event.get("args")
    return " between nodes" if isinstance(values, dict) and values.get("level") == "between" else ""


def read_events(path, rank):
    """The complete events of a rank in trace.json, and the names of its tracks by number. Throws ToolError."""
    complete, tracks, ranks = [], {}, set()
    for event in tool.field(tool.read_json(path), "traceEvents", list, path):
        tool.require(event, dict, path, "an event")
        ranks.add(tool.field(event, "pid", int, path))
        if event["pid"] != rank:
            continue
        track, name = tool.field(event, "tid", int, path), short(tool.field(event, "name", str, path))
        if event.get("ph") == "M" and name == "thread_name":
            values = tool.field(event, "args", dict, path)
            tracks[track] = short(tool.field(values, "name", str, path))
        elif event.get("ph") == "X":
            tool.field(event, "ts", float, path)
            tool.field(event, "dur", float, path, least=0)
            complete.append(event | {"name": EARLIER_NAMES.get(name, name) + level_of(event)})
    if ranks and rank not in ranks:
        held = sorted(ranks)
        raise tool.ToolError(f"{path}: holds no rank {rank}, but {', '.join(map(str, held[:16]))}"
                             f"{', ...' if len(held) > 16 else ''}; of more than 256 ranks it holds a few (trace.ranks)")
    return complete, tracks


def read_step(path, step, rank):
    """What ran on the streams of a rank during a step, cut at its start and end. Throws ToolError."""
    events, tracks = read_events(path, rank)
    whole = [event for event in events if event.get("cat") == "step" and event["name"] == f"step {step}"]
    if not whole or whole[0]["dur"] == 0:
        raise tool.ToolError(f"{path}: holds no step {step} of rank {rank}; list it in trace.json_steps")
    begin, length = whole[0]["ts"], whole[0]["dur"]
    spans = []
    for event in events:
        first, last = max(0, event["ts"] - begin), min(length, event["ts"] + event["dur"] - begin)
        if event.get("cat") != "step" and first < last:
            spans.append(Span(event["name"], event["tid"], first / 1e3, last / 1e3))
    # A region that lies in another follows it, and is drawn over it.
    spans.sort(key=lambda span: (span.begin, -span.end))
    numbers = sorted(tracks.keys() | {span.track for span in spans})
    return Step(length / 1e3, spans, {number: tracks.get(number, f"track {number}") for number in numbers})


def draw_step(title, step, output):
    """Draws what ran on the streams in one step, one row a stream."""
    from matplotlib.patches import Patch

    found = {span.name for span in step.spans}
    names = [name for name in PHASES if name in found] + sorted(found.difference(PHASES))
    colour = colours(names)
    rows = {track: row for row, track in enumerate(step.tracks)}
    figure = new_figure(1.7 + 0.75 * len(rows))
    axes = figure.add_subplot()
    for span in step.spans:
        width = span.end - span.begin
        # A bar narrower than a pixel would not show without a line of its colour.
        narrow = width < 0.0007 * step.length
        axes.barh(rows[span.track], width, left=span.begin, height=0.7, color=colour[span.name],
                  edgecolor=colour[span.name] if narrow else "white",
                  linewidth=0.5 if narrow else 0.3 if width > 0.003 * step.length else 0)
        label = span.name.replace("_", " ")
        if width > 0.0078 * (len(label) + 1) * step.length:
            dark = sum(colour[span.name][:3]) < 1.5
            axes.annotate(plain(label), (span.begin + width / 2, rows[span.track]), ha="center", va="center",
                          fontsize=8.5, color="white" if dark else INK)
    axes.set_yticks(list(rows.values()), [plain(step.tracks[track]) for track in rows])
    axes.set(xlabel="ms since the step began", xlim=(0, step.length), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.legend([Patch(color=colour[name]) for name in names], [plain(name.replace("_", " ")) for name in names],
                ncols=10, frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 1), handlelength=1, columnspacing=1.2,
                fontsize=8.5)
    save(figure, title, output)


def main():
    arguments = parse_arguments()
    folder, number, rank = arguments.folder, arguments.step, arguments.rank
    if number is not None:
        tool.need("matplotlib")
        step, output = read_step(folder / "trace.json", number, rank), arguments.output or folder / "step.png"
        draw_step(f"{folder.resolve().name}:  step {number} of rank {rank},  {step.length:,.1f} ms", step, output)
    else:
        tool.need("numpy", "h5py", "matplotlib")
        trace, output = read_trace(folder / "trace.h5"), arguments.output or folder / "run.png"
        if len(trace["step"]) == 0:
            missing = gaps_of_run(folder, trace)
            raise tool.ToolError(f"{folder / 'trace.h5'}: {missing_rows(missing) if missing else 'no steps yet'}",
                                 tool.NOT_DONE)
        draw(folder, trace, output, arguments.against)
    tool.say(output)


if __name__ == "__main__":
    tool.run(main)
