"""The plots of a study, each drawn on axes it is given."""

import io
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import tool
from matplotlib import colormaps
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter
from plot_run import ACCENT, FAINT, INK, colours, wrapped

from . import gather
from .model import PARTS

COMPUTE, COMMUNICATION, BETWEEN, WAITING, IDEAL = "#2b6ca3", "#e6821e", "#a8326e", "#f7c88f", "#8a949e"
# What a step is: run on as many nodes as it counts, run where ranks of one machine count as several nodes, or computed.
KINDS = {"measured": COMPUTE, "emulated": "#2e8b57", "predicted": "#8e44ad"}
STYLE = {
    "text.usetex": False,
    "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlepad": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#eceff2", "xtick.color": INK, "ytick.color": INK,
    "legend.frameon": False, "legend.fontsize": 8.5, "svg.fonttype": "path", "svg.hashsalt": "nanorun",
}
CHARACTER = 0.022  # width of a character, as a share of the axes
# Blues compute, oranges communicate, as in the phases; between them ranks wait.
PART_COLOURS = dict(zip(PARTS, [*colormaps["Blues"]([0.85, 0.65, 0.47, 0.3]), FAINT,
                                *colormaps["Oranges"]([0.75, 0.5, 0.3])]))


def apart(items, place, room):
    """Of the items, by ascending place(item), those that are far enough apart: each has room(item) behind the one
    before. The last one is always kept."""
    kept = []
    for item in reversed(items):
        if not kept or place(kept[-1]) - place(item) >= room(kept[-1]):
            kept.append(item)
    return kept[::-1]


def ranks_axis(axes, ranks):
    """Makes the x axis logarithmic, with ticks at the rank counts, as many as have room."""
    axes.set_xscale("log", base=2)
    length = np.log2(ranks[-1] / ranks[0]) or 1
    powers = [n for n in ranks if n & (n - 1) == 0]
    shown = apart(ranks if len(ranks) <= 12 else powers or ranks, np.log2,
                  lambda n: length * (0.03 + CHARACTER * len(f"{n:,}")))
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{n:,}" for n in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")


def doubling_axis(axes, **ticks):
    """Makes the y axis logarithmic. On a logarithmic x axis perfect scaling is then a straight line."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.1, high * 1.1)
    axes.yaxis.set_major_locator(LogLocator(**ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def points_axis(axes, analysis):
    """Gives each rank count a position on the x axis, with a star where ranks share cores. Returns the positions at
    which words of some characters have room."""
    points = analysis.points
    names = [f"{m.ranks:,}{'*' if analysis.oversubscribed(m.ranks) else ''}" for m in points]

    def with_room(characters):
        return set(apart(range(len(points)), lambda x: x, lambda _: len(points) * (0.01 + CHARACTER * characters)))

    shown = with_room(max(map(len, names)))
    axes.set_xticks(range(len(names)), [name if x in shown else "" for x, name in enumerate(names)])
    edge = 0.5 + 0.05 * len(names)
    axes.set_xlim(-edge, len(names) - 1 + edge)
    axes.set_xlabel("ranks")
    axes.grid(axis="x", visible=False)
    return with_room


def draw_runs(axes, analysis, value):
    """A point for each rank count, hollow where ranks share cores."""
    for m in analysis.points:
        kind = analysis.kind(m)
        face = "white" if analysis.oversubscribed(m.ranks) else KINDS[kind]
        named = kind in axes.get_legend_handles_labels()[1]
        axes.plot(m.ranks, value(m), "o", markersize=7, markerfacecolor=face, markeredgecolor=KINDS[kind],
                  markeredgewidth=1.6, zorder=4, label=None if named else kind)


def draw_points(axes, analysis, value, ideal):
    """Median runs joined by a line, whiskers over the repeats."""
    ranks = [m.ranks for m in analysis.points]
    middle = [value(m) for m in analysis.points]
    every = [[value(m) for m in analysis.repeats(n)] for n in ranks]
    axes.plot(ranks, [ideal(n) for n in ranks], "--", color=IDEAL, linewidth=1.2, label="perfect scaling")
    whiskers = [[v - min(e) for v, e in zip(middle, every)], [max(e) - v for v, e in zip(middle, every)]]
    axes.errorbar(ranks, middle, yerr=whiskers, color=COMPUTE, linewidth=1.8, elinewidth=1, capsize=3, zorder=3)
    draw_runs(axes, analysis, value)
    ranks_axis(axes, ranks)
    if len(ranks) > 1:
        axes.set_xlim(ranks[0] / 1.12, ranks[-1] * 1.12)


def draw_throughput(axes, analysis):
    base = analysis.base
    draw_points(axes, analysis, lambda m: m.rate, lambda n: base.rate * n / base.ranks)
    doubling_axis(axes, subs=(1, 2, 5))
    axes.set(title="Throughput", ylabel="tokens per second")
    axes.legend(loc="upper left")


def draw_speed_up(axes, analysis):
    draw_points(axes, analysis, lambda m: gather.speed_up(m, analysis.base), lambda n: n)
    doubling_axis(axes, base=2)
    axes.set(title="Speed-up" if analysis.study.kind == "strong" else "Scaled speed-up",
             ylabel="in units of one rank")
    axes.legend(loc="upper left")


def draw_efficiency(axes, analysis):
    draw_points(axes, analysis, lambda m: gather.speed_up(m, analysis.base) / m.ranks, lambda n: 1)
    axes.set_ylim(0, max(1.12, 1.05 * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(title="Efficiency", ylabel="speed-up / ranks")
    axes.legend(loc="lower left")


def stack(axes, analysis, series, colour, unit=1.0):
    """Draws stacked bars by rank count. `series`: name -> one value a point. Returns what points_axis() returns."""
    floor = np.zeros(len(analysis.points))
    for name, values in series.items():
        height = unit * np.array(values)
        axes.bar(range(len(floor)), height, bottom=floor, width=0.62, color=colour[name], label=name.replace("_", " "),
                 edgecolor="white", linewidth=0.4)
        floor += height
    axes.tick_params(axis="x", length=0, pad=5)
    return points_axis(axes, analysis)


def beside(axes, **options):
    """Draws a legend right of the axes, in the order of the stack."""
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1,
                handleheight=1, **options)


def below(axes, *entries, **options):
    """Draws a legend under the name of the x axis."""
    axes.legend(*entries, loc="upper left", bbox_to_anchor=(-0.02, -0.2), borderaxespad=0, ncols=2, columnspacing=1.2,
                **options)


def draw_phases(axes, analysis):
    names = list(analysis.base.phases)
    whole = max(sum(m.phases.values()) for m in analysis.points)
    shown = [n for n in names if max(m.phases[n] for m in analysis.points) > 0.004 * whole]
    series = {n: [m.phases[n] for m in analysis.points] for n in shown}
    stack(axes, analysis, series, colours(names), 1e3)
    axes.set_ylim(0, 1.08e3 * max(sum(values) for values in zip(*series.values())))
    axes.set(title="Step time by phase", ylabel="ms, mean over ranks")
    beside(axes)


def draw_split(axes, analysis):
    whole = [m.computing + m.transfer + m.waiting for m in analysis.points]
    series = {"computing": [m.computing for m in analysis.points],
              "communication": [m.transfer - m.transfer_between for m in analysis.points],
              "between nodes": [m.transfer_between for m in analysis.points],
              "waiting for ranks": [m.waiting for m in analysis.points]}
    if not any(series["between nodes"]):
        del series["between nodes"]
    series = {name: [v / w for v, w in zip(values, whole)] for name, values in series.items()}
    with_room = stack(axes, analysis, series,
                      {"computing": COMPUTE, "communication": COMMUNICATION, "between nodes": BETWEEN,
                       "waiting for ranks": WAITING})
    overlaps = [(x, m.overlap) for x, m in enumerate(analysis.points)
                if m.ranks > 1 and m.overlap == m.overlap and x in with_room(3)]
    for x, overlap in overlaps:
        word = "overlap\n" if x == overlaps[0][0] else ""  # once, since bars may be narrower than the word
        axes.annotate(f"{word}{overlap:.0%}", (x, 1), xytext=(0, 3), textcoords="offset points", ha="center",
                      fontsize=8, color=INK)
    axes.set_ylim(0, 1.14)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(title="Computing and communication", ylabel="share of the step")
    beside(axes)


def draw_ranks(axes, analysis):
    """A dot a rank, or a quantile of a group of ranks; the most work is marked."""
    named = points_axis(axes, analysis)(7)
    for x, m in enumerate(analysis.points):
        work = 1e3 * m.work
        offsets = np.linspace(-0.22, 0.22, len(work)) if len(work) > 1 else [0]
        axes.plot(x + np.array(offsets), work, "o", markersize=6 if len(work) <= 16 else 3, color=COMPUTE, alpha=0.75,
                  markeredgewidth=0)
        most = work.argmax()
        axes.plot(x + offsets[most], work[most], "o", markersize=8, color=ACCENT, markeredgewidth=0)
        if len(work) > 1 and x in named:
            axes.annotate(f"rank {m.slowest}\n+{m.excess:.1%}",
                          (x + offsets[most], work[most]), xytext=(0, 8), textcoords="offset points",
                          ha="center", va="bottom", fontsize=8, color=ACCENT)
    axes.set_ylim(0, 1.22 * max(1e3 * m.work.max() for m in analysis.points))
    axes.set(title="Spread over ranks", ylabel="ms outside of collectives")
    below(axes, [Line2D([], [], marker="o", linestyle="", color=c) for c in (COMPUTE, ACCENT)],
          ["a rank", "the slowest, and its excess over the mean"], handletextpad=0.1)


def draw_model(axes, analysis):
    """Measured steps, the fit, and what each point's absence makes the others predict for it."""
    ranks = [m.ranks for m in analysis.points]
    axes.plot(ranks, [1e3 * analysis.fitted_step(m) for m in analysis.points], "-", color=IDEAL, linewidth=1.6,
              label="model")
    draw_runs(axes, analysis, lambda m: 1e3 * m.step)
    # With many points only the largest error is written beside its point: a table has them all.
    named = {abs(error) for error in analysis.errors if len(ranks) <= 5 or abs(error) == analysis.largest_error}
    for i, (m, error) in enumerate(zip(analysis.points, analysis.errors)):
        y = 1e3 * m.step * (1 + error)
        axes.plot(m.ranks, y, "x", markersize=8, color=KINDS["predicted"], markeredgewidth=2,
                  label="predicted from other points" if i == 0 else None)
        if abs(error) in named:
            axes.annotate(f"{error:+.0%}", (m.ranks, y), xytext=(11, 0), textcoords="offset points", ha="left",
                          va="center", fontsize=8.5, color=KINDS["predicted"],
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    ranks_axis(axes, ranks)
    if len(ranks) > 1:
        span = ranks[-1] / ranks[0]
        axes.set_xlim(ranks[0] / span ** 0.06, ranks[-1] * span ** 0.22)  # room for the last error
    axes.set_ylim(0, 1.32 * axes.get_ylim()[1])
    axes.set(title="Model and measurement", ylabel="ms per step")
    axes.legend(loc="upper left", ncols=2, handlelength=1.2, columnspacing=1.2)


def draw_no_forecast(axes, analysis, title):
    axes.set(title=title, xticks=[], yticks=[])
    axes.text(0.5, 0.5, textwrap.fill(f"No prediction: {analysis.no_forecast}", 44), transform=axes.transAxes,
              ha="center", va="center")


def draw_forecast_parts(axes, analysis):
    forecast, title = analysis.forecast, "Prediction: what fills a step"
    if forecast is None:
        draw_no_forecast(axes, analysis, title)
        return
    shares = {name: [parts[name] / step for parts, step in zip(forecast.parts, forecast.steps)] for name in PARTS}
    axes.stackplot(forecast.ranks, list(shares.values()), labels=list(shares), colors=list(PART_COLOURS.values()),
                   linewidth=0)
    ranks_axis(axes, forecast.ranks)
    axes.set_xlim(forecast.ranks[0], max(2 * forecast.ranks[0], forecast.ranks[-1]))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(title=title, ylabel="share of the step")
    beside(axes)


def draw_forecast(axes, analysis):
    forecast, title = analysis.forecast, "Prediction: efficiency"
    if forecast is None:
        draw_no_forecast(axes, analysis, title)
        return
    efficiency = forecast.efficiency
    axes.axhline(1, linestyle="--", color=IDEAL, linewidth=1.2)
    axes.axhline(0.5, linestyle=":", color=IDEAL, linewidth=1.2)
    axes.plot(forecast.ranks, efficiency, ".-", color=KINDS["predicted"], linewidth=2, label="predicted")
    error = analysis.largest_error
    axes.fill_between(forecast.ranks, efficiency / (1 + error), efficiency / (1 - error),
                      color=KINDS["predicted"], alpha=0.13, linewidth=0,
                      label=f"a step ±{error:.0%}, as the worst run")
    i = forecast.first_below(0.5)
    if i is not None:
        n = forecast.ranks[i]
        axes.plot(n, efficiency[i], "o", color=ACCENT, markersize=8, clip_on=False)
        # The curve falls: what lies above it to the right is free, and below it to the left.
        left = n * n < forecast.ranks[0] * forecast.ranks[-1]
        above = left or efficiency[i] < 0.2
        axes.annotate(f"below 50% from {n:,} ranks:\n{forecast.losses(i)[0][0]}", (n, efficiency[i]),
                      xytext=(10 if left else -10, 4 if above else -4), textcoords="offset points",
                      ha="left" if left else "right", va="bottom" if above else "top", color=ACCENT, fontsize=8.5,
                      fontweight="bold")
    ranks_axis(axes, forecast.ranks)
    axes.set_xlim(forecast.ranks[0], max(2 * forecast.ranks[0], forecast.ranks[-1]))
    axes.set_ylim(0, 1.12 * max(1, efficiency.max()))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(title=title, ylabel="speed-up / ranks")
    below(axes)


# In the order of the overview, three a row; those in the last column have a legend beside them.
PANELS = {"throughput": draw_throughput, "efficiency": draw_efficiency, "phases": draw_phases,
          "speed_up": draw_speed_up, "ranks": draw_ranks, "split": draw_split,
          "model": draw_model, "forecast": draw_forecast, "forecast_parts": draw_forecast_parts}


def svg(name, analysis):
    """One panel as the bytes of an SVG file."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.2, 3.7), layout="constrained")
        PANELS[name](axes, analysis)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        plt.close(figure)
    return out.getvalue()


def save_overview(path, analysis, heading):
    """All panels on one PNG."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(16, 12), dpi=120, layout="constrained")
        figure.get_layout_engine().set(rect=(0.005, 0.005, 0.99, 0.985), h_pad=0.1, w_pad=0.1)
        figure.suptitle(wrapped(heading, 150), x=0.012, ha="left", fontsize=13)
        for axes, draw in zip(figure.subplots(3, 3).flat, PANELS.values()):
            draw(axes, analysis)
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        plt.close(figure)
    tool.write(path, picture.getvalue())
