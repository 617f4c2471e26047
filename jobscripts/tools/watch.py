#!/usr/bin/env python3
"""Follows runs while they train: draws them on an HTML page, or hands their figures to TensorBoard or Weights & Biases.

Reads metrics.jsonl of each output directory as it grows, and anew where a run begins anew. Waits for runs that have not
begun, and ends when all have ended. The page draws itself again in the browser, from a file or a web server.
"""

import argparse
import contextlib
import datetime
import html
import importlib
import math
import os
import pathlib
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import chart
import page
import tool
from metrics import Metrics, tokens_of
from runs import distinct, name_runs, read_deck, read_summary, weighted_stages

LOG_BYTES, LOG_LINES = 4096, 5
RECENT = 10  # steps whose mean time gives the time that is left

# Keeps the place of the reader, and waits while text is selected or the page is hidden.
RELOAD = """<script>
const place = "nanorun watch " + location.pathname;
try { scrollTo(0, sessionStorage.getItem(place) || 0); } catch {}
setInterval(() => {
  if (document.hidden || String(getSelection())) return;
  try { sessionStorage.setItem(place, scrollY); } catch {}
  location.reload();
}, %d);
</script>"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, nargs="+", metavar="RUN",
                        help="output directories of runs, also of those that have not begun")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE",
                        help="HTML page to write (default, where nothing else is asked for: watch.html)")
    parser.add_argument("--tensorboard", type=pathlib.Path, metavar="DIR", help="write TensorBoard's event files there")
    parser.add_argument("--wandb", metavar="PROJECT", help="send the figures to this project of Weights & Biases")
    parser.add_argument("--every", type=float, default=5, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--once", action="store_true", help="read the runs once and end")
    arguments = tool.parse(parser)
    if not 0.1 <= arguments.every <= 86400:
        raise tool.ToolError(f"--every: 0.1 to 86400 seconds, not {arguments.every:g}")
    if not (arguments.html or arguments.tensorboard or arguments.wandb):
        arguments.html = pathlib.Path("watch.html")
    return arguments


# --- What the runs do -------------------------------------------------------------------------------------------------


class Watched:
    """One run: its metrics and how far it has come."""

    def __init__(self, folder, label, once=False):
        self.folder, self.label = folder, label
        self.metrics = Metrics(folder / "metrics.jsonl")
        self.deck, self.summary, self.added = {}, {}, []
        # An end that was there before tells nothing of the run to come, for which one waits unless one looks once.
        self.old = 0 if once else self.time_of("summary.json")

    def time_of(self, name):
        """When a file was last written, in ns; 0 where there is none."""
        try:
            return os.stat(self.folder / name).st_mtime_ns
        except OSError:
            return 0

    def poll(self):
        self.added = self.metrics.poll()
        if os.path.lexists(self.folder / "deck.toml") and (self.added or not self.deck):
            self.deck = read_deck(self.folder)
        # A summary that is older than the metrics is of an earlier start.
        written = self.time_of("summary.json")
        self.summary = read_summary(self.folder) if written and written >= self.time_of("metrics.jsonl") else {}
        if not self.summary.get("finished") and written == self.old:
            self.summary = {}

    @property
    def ended(self):
        return bool(self.summary)

    @property
    def step(self):
        return max((lines[-1]["step"] for lines in (self.metrics.steps, self.metrics.validations) if lines), default=0)

    @property
    def steps(self):
        """Steps of the whole run; 0 where that is not known."""
        steps = self.deck.get("train.steps", 0)
        return steps if isinstance(steps, int) else 0

    @property
    def state(self):
        if self.summary.get("finished"):
            return "finished" if self.metrics.steps or self.metrics.validations else "finished, without metrics.jsonl"
        if self.ended:
            return tool.one_line(f"stopped: {self.summary.get('stopped_by')}")
        return "running" if self.metrics.steps or self.metrics.validations else "not begun"

    def last(self, key):
        """The newest value of a figure; nan where there is none."""
        lines = self.metrics.validations if key.startswith("validation_") else self.metrics.steps
        return lines[-1].get(key, math.nan) if lines else math.nan

    def whole_number(self, key):
        value = self.deck.get(key, 0)
        return value if isinstance(value, int) and value > 0 else 0

    def validations_left(self):
        """Validations that are still to come."""
        if not self.whole_number("validation.tokens") or not self.deck.get("data.validation"):
            return 0
        made = self.metrics.validations[-1]["step"] if self.metrics.validations else -1
        first, every = max(self.step, made + 1), self.whole_number("validation.every")
        if first > self.steps or not every:
            return int(first <= self.steps)
        return self.steps // every - (first - 1) // every + (self.steps % every > 0)

    def seconds_left(self):
        """Estimated seconds until the end: steps take the mean of the recent ones, validations the time of the last
        one. Before the first validation, one is expected to take a third of the training time of as many tokens."""
        recent = self.metrics.steps[-RECENT:]
        if self.ended or not recent or not self.steps:
            return math.nan
        step = sum(line.get("ms", math.nan) for line in recent) / len(recent)
        validation = self.last("validation_ms")
        if not math.isfinite(validation):
            validation = recent[-1].get("ms", math.nan) * self.whole_number("validation.tokens") / (
                3 * tokens_of(recent[-1]) or math.nan)
        left = self.validations_left()
        return (max(0, self.steps - self.step) * step + (left * validation if left else 0)) / 1e3

    def log_lines(self):
        """The last lines of the log."""
        path = self.folder / "log.txt"
        if not path.is_file():  # a pipe might never end
            return []
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
                lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return []
        return [tool.one_line(line) for line in lines]


# --- As a page --------------------------------------------------------------------------------------------------------


def clock(seconds):
    if not math.isfinite(seconds):
        return "—"
    s = round(seconds)
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60:02}:{s % 60:02}"


def shown(value, pattern, unit=""):
    """A number as text; a dash where there is none."""
    return f"{value:{pattern}}{unit}" if math.isfinite(value) else "—"


def state_table(watched):
    rows = [["run", "state", "step", "ETA", "loss", "validation", "step time", "tokens/s", "MFU", "memory"]]
    for run in watched:
        of = f"/{run.steps}" if run.steps else ""
        rows.append([run.label, run.state, f"{run.step}{of}", clock(run.seconds_left()),
                     shown(run.last("loss"), ".5f", " (weighted)" if math.isfinite(run.last("loss_weights")) else ""),
                     shown(run.last("validation_loss"), ".5f"), shown(run.last("ms"), ",.1f", " ms"),
                     shown(run.last("tokens_per_second"), ",.0f"), shown(100 * run.last("mfu"), ".1f", " %"),
                     shown(run.last("device_memory_bytes") / 1e9, ".2f", " GB")])
    return page.table(rows, text=2)


def points(run, across, key, factor=1):
    return [(line.get(across, math.nan), factor * line.get(key, math.nan)) for line in run.metrics.steps]


def loss_chart(watched, across, name):
    lines, validations = [], []
    for i, run in enumerate(watched):
        colour, dashes = chart.colour(i)
        training = points(run, across, "loss")
        lines += [chart.Line(training, colour, faint=True), chart.Line(chart.smooth(training), colour, dashes)]
        validations.append(chart.Line([(line.get(across, math.nan), line["validation_loss"])
                                       for line in run.metrics.validations], colour, dashes, dots=True))
    weighted = any(weighted_stages(run.deck) for run in watched)
    title = f"Loss by {name}" + "; that of training is a weighted sum" * weighted
    return chart.draw(title, lines + validations, name, "nats per token",
                      most=chart.top_of_losses(lines[1::2] + validations))


def figure_chart(watched, title, key, up, factor=1, cut=False):
    """A chart of a figure of the steps. `cut`: rare large values may leave the picture."""
    lines = [chart.Line(points(run, "step", key, factor), *chart.colour(i)) for i, run in enumerate(watched)]
    return chart.draw(title, lines, "steps", up, least=0, most=chart.usual_top(lines) if cut else None)


def has(watched, key):
    return any(math.isfinite(run.last(key)) for run in watched)


def charts(watched):
    drawn = [loss_chart(watched, "step", "steps"), loss_chart(watched, "train_seconds", "seconds of training"),
             figure_chart(watched, "Time of a step", "ms", "ms", cut=True),
             figure_chart(watched, "Throughput", "tokens_per_second", "thousand tokens per second", 1e-3)]
    further = [figure_chart(watched, title, key, up, **options) for title, key, up, options in (
        ("Model FLOPs utilisation", "mfu", "% of the peak", {"factor": 100}),
        ("Memory of the GPU of rank 0", "device_memory_bytes", "GB", {"factor": 1e-9}),
        ("Norm of the gradient", "gradient_norm", "l2 norm", {"cut": True})) if has(watched, key)]
    if len(further) % 2:
        further.append(figure_chart(watched, "Learning rate", "lr", "factor on every learning rate"))
    key = page.paragraph("Of the losses, the line with dots is that of validation, the other that of training.")
    return key + page.side_by_side(*map(page.drawing, drawn + further))


def document(watched, every, live):
    """The page. `live`: it will change again."""
    now = datetime.datetime.now(datetime.timezone.utc)
    colours = [(run.label, *chart.colour(i)) for i, run in enumerate(watched)]
    logs = "".join(f"<h2>{html.escape(run.label)}</h2><pre>{html.escape(chr(10).join(lines))}</pre>"
                   for run in watched if (lines := run.log_lines()))
    ended = sum(run.ended for run in watched)
    title = watched[0].label if len(watched) == 1 else f"{len(watched)} runs"
    return page.document(
        title, f"{now:%Y-%m-%d %H:%M:%S} UTC  ·  {ended} of {len(watched)} ended  ·  "
        + (f"drawn again every {every:g} s" if live else "not watched any more"),
        state_table(watched), page.section("Training", chart.legend(colours), charts(watched)), logs,
        RELOAD % max(1000, round(1e3 * every)) if live else "")


# --- Where the figures go ---------------------------------------------------------------------------------------------


class HtmlPage:
    def __init__(self, path, every):
        self.path, self.every = path, every

    def update(self, watched, live):
        tool.replace(self.path, document(watched, self.every, live))

    def close(self):
        pass


@contextlib.contextmanager
def through(module):
    """Ends the tool in one line where a module of others fails."""
    try:
        yield
    except tool.ToolError:
        raise
    except Exception as error:
        raise tool.ToolError(f"{module}: {error or type(error).__name__}", tool.NOT_DONE) from None


def scalars(record):
    """Names and values of a line, as both services group them."""
    weighted = "_weighted" if "loss_weights" in record else ""
    names = {"loss": f"loss/training{weighted}", "validation_loss": "loss/validation"}
    return {names.get(key, f"run/{key}"): value for key, value in record.items()
            if key != "step" and math.isfinite(value)}


def summary_writer():
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(name).SummaryWriter
        except (ImportError, AttributeError):
            continue
    raise tool.ToolError(f"{sys.executable} has neither torch.utils.tensorboard nor tensorboardX: "
                         "pip install tensorboardX")


class TensorBoard:
    """A directory of event files for each run."""

    def __init__(self, folder):
        self.folder, self.writers = folder, {}
        with through("TensorBoard"):
            self.make = summary_writer()

    def writer(self, run):
        """The writer of a run. It is a new one where the run begins anew, since the events of later steps no longer
        hold."""
        restarts, writer = self.writers.get(run.label, (None, None))
        if restarts != run.metrics.restarts:
            if writer:
                writer.close()
            writer = self.make(str(self.folder / run.label.replace("/", "_")), purge_step=0)
            self.writers[run.label] = run.metrics.restarts, writer
        return writer

    def update(self, watched, live):
        with through("TensorBoard"):
            for run in watched:
                writer = self.writer(run)
                for record in run.added:
                    for name, value in scalars(record).items():
                        writer.add_scalar(name, value, record["step"])
                writer.flush()

    def close(self):
        with through("TensorBoard"):
            for _, writer in self.writers.values():
                writer.close()


class WeightsAndBiases:
    """A run of the project for each run, which begins with the first figures."""

    def __init__(self, project):
        self.project, self.runs, self.sent = project, {}, {}
        try:
            self.module = importlib.import_module("wandb")
        except ImportError as error:
            raise tool.ToolError(f"{sys.executable} has no module wandb ({error}): pip install wandb") from None

    def update(self, watched, live):
        with through("wandb"):
            for run in watched:
                if run.added and run.label not in self.runs:
                    self.runs[run.label] = self.module.init(project=self.project, name=run.label, config=run.deck,
                                                            reinit="create_new")
                self.send(run)

    def send(self, run):
        """Sends new lines. Steps that a run repeats would be refused and are left out, but the validation of the last
        step may come later. What belongs to one step is sent together."""
        steps = {}
        for record in run.added:
            steps.setdefault(record["step"], {}).update(scalars(record))
        for step, values in steps.items():
            if step >= self.sent.get(run.label, 0):
                self.runs[run.label].log(values, step=step)
                self.sent[run.label] = step

    def close(self):
        with through("wandb"):
            for run in self.runs.values():
                run.finish()


def sinks_of(arguments):
    return [HtmlPage(arguments.html, arguments.every)] * bool(arguments.html) + (
        [TensorBoard(arguments.tensorboard)] if arguments.tensorboard else []) + (
        [WeightsAndBiases(arguments.wandb)] if arguments.wandb else [])


def follow(watched, sinks, every, once):
    """Updates the sinks until all runs have ended or the user interrupts."""
    while True:
        for run in watched:
            run.poll()
        live = not once and not all(run.ended for run in watched)
        for sink in sinks:
            sink.update(watched, live)
        if not live:
            return
        time.sleep(every)


def main():
    arguments = parse_arguments()
    folders = distinct(arguments.folder)
    missing = [folder for folder in folders if not folder.is_dir()]
    if arguments.once and missing:
        raise tool.ToolError(f"{missing[0]}: no such directory")
    watched = [Watched(folder, label, arguments.once) for folder, label in zip(folders, name_runs(folders))]
    sinks = sinks_of(arguments)
    for folder in missing:
        tool.say(tool.one_line(f"{folder}: no such directory yet, waiting for it"))
    if arguments.html and not arguments.once:
        tool.say(f"watching {len(watched)} run{'s' if len(watched) > 1 else ''}: open {arguments.html}; Ctrl-C ends")
    try:
        follow(watched, sinks, arguments.every, arguments.once)
    except KeyboardInterrupt:
        for run in watched:
            run.added = []
        for sink in sinks:
            sink.update(watched, live=False)
    for sink in sinks:
        sink.close()
    for run in watched:
        tool.say(f"{run.label}: {run.state}, step {run.step}" + (f"/{run.steps}" if run.steps else ""))


if __name__ == "__main__":
    tool.run(main)
