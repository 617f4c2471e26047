#!/usr/bin/env python3
"""Compares runs: their losses by step, time and tokens, how soon they reach a target, and what their decks differ in.

Runs whose decks differ in run.seed and run.name alone form a group, whose mean loss is tested against the target and
against those of the other groups. Prints tables and writes them with pictures into one HTML page. Reads deck.toml,
metrics.jsonl (where it is missing trace.h5) and summary.json of each output directory.

A single run has a page of its own: what ran where, its losses, time and energy, and what to look at first.

Files benchmark.json of jobscripts/benchmark.sh are machines, whose figures of merit it lays side by side.
"""

import argparse
import collections
import datetime
import html
import itertools
import json
import math
import os
import pathlib
import statistics
import sys
from dataclasses import dataclass

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import chart
import machines
import page
import run_page
import t_test
import tool
from runs import OWN_KEYS, TARGET, advised, distinct, is_earlier, read_runs

MOST_PAIRED = 5  # groups of which each is compared with each; of more, all with the best
LONGEST_VALUES = (48, 24, 12)  # characters that tables show of a key's value: fewer where a label has many keys
LONGEST_LABEL = 300
DASH = "—"  # for what there is not


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("folder", type=pathlib.Path, nargs="+", metavar="RUN",
                        help="output directories of the runs, or files benchmark.json")
    parser.add_argument("--target", type=float, default=TARGET, help="validation loss to reach (default: %(default)s)")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("compare.html"), metavar="FILE",
                        help="HTML page to write (default: %(default)s)")
    arguments = tool.parse(parser)
    if not math.isfinite(arguments.target):
        raise tool.ToolError(f"--target: {arguments.target} is no loss")
    return arguments


# --- What is found ----------------------------------------------------------------------------------------------------

Reached = collections.namedtuple("Reached", "step seconds tokens")


def reached(run, target):
    """When the validation loss first reached the target, interpolated between validations; None if it never did."""
    before = None
    for now in run.validations:
        if now.loss <= target:
            if before is None or not before.loss > target:
                return Reached(float(now.step), now.seconds, now.tokens)
            part = (before.loss - target) / (before.loss - now.loss)
            return Reached(*(a + part * (b - a) for a, b in ((before.step, now.step), (before.seconds, now.seconds),
                                                             (before.tokens, now.tokens))))
        before = now
    return None


def differences(runs, longest=LONGEST_VALUES[0]):
    """The keys in which the decks differ: key -> one value for each run."""
    keys = dict.fromkeys(key for run in runs for key in run.deck)
    found = {key: [value_text(run.deck, key) for run in runs] for key in keys if key != "run.name"}
    return {key: cut(values, longest) for key, values in found.items() if len(set(values)) > 1}


def value_text(deck, key):
    return json.dumps(deck[key], ensure_ascii=False, default=str) if key in deck else DASH


def cut(values, longest=LONGEST_VALUES[0]):
    """The values of a key, cut for a table: of long ones the part where they begin to differ."""
    if max(map(len, values)) <= longest:
        return values
    same = len(os.path.commonprefix([value for value in values if value != DASH]))
    shown = [excerpt(value, max(0, same - longest // 4), longest) for value in values]
    distinct = list(dict.fromkeys(values))
    if len(set(shown)) < len(distinct):  # they differ again further on
        shown = [f"{text} ({distinct.index(value) + 1})" for text, value in zip(shown, values)]
    return shown


def excerpt(value, first, longest):
    """What a table shows of a value: a short one as it is, of a long one the part from `first` on."""
    if len(value) <= longest:
        return value
    part = value[first:first + longest]
    return ("…" if first else "") + part + ("…" if first + longest < len(value) else "")


@dataclass
class Group:
    runs: list
    label: str = ""

    @property
    def losses(self):
        return [run.loss for run in self.runs]

    @property
    def mean(self):
        return statistics.mean(self.losses)


def groups_of(runs):
    """Groups of the finished runs, with labels that tell them apart. Warns of runs that are no further sample."""
    table = {}
    for run in runs:
        if not run.finished or not math.isfinite(run.loss):
            tool.warn(f"in no group: {run.label} has no final validation loss")
        elif is_earlier(run.folder, str(run.deck.get("run.name"))):
            tool.warn(f"in no group: {run.label} is an earlier run of the name {run.deck['run.name']}")
        else:
            table.setdefault(run.group(), []).append(run)
    groups = [Group(members) for members in table.values()]
    for group, label in zip(groups, labels_of(groups)):
        group.label = label or "all runs"
        for seed, count in collections.Counter(str(run.seed) for run in group.runs).items():
            if count > 1:
                tool.warn(f"warning: {count} runs of {group.label} have the seed {seed}; the tests take runs for "
                          "independent")
    return groups


def labels_of(groups):
    """What tells each group from the others, key by key; empty where nothing does."""
    labels = []
    for longest in LONGEST_VALUES:
        apart = differences([group.runs[0] for group in groups], longest)
        labels = [", ".join(f"{key}={values[i]}" for key, values in apart.items() if key not in OWN_KEYS)
                  for i in range(len(groups))]
        if max(map(len, labels), default=0) <= LONGEST_LABEL:
            break
    return labels


def pairs(groups):
    """Pairs of groups to test against each other; each group has two or more runs."""
    several = [group for group in groups if len(group.runs) > 1]
    if len(several) <= MOST_PAIRED:
        return list(itertools.combinations(several, 2))
    best = min(several, key=lambda group: group.mean)
    return [(group, best) for group in several if group is not best]


@dataclass
class Comparison:
    runs: list
    target: float  # None: there is none
    differences: dict
    groups: list
    tests: list  # (group, group, t_test.Difference)

    def __init__(self, runs, target):
        self.runs, self.target = runs, target
        self.differences, self.groups = differences(runs), groups_of(runs)
        self.tests = [(a, b, t_test.welch(a.losses, b.losses)) for a, b in pairs(self.groups)]

    @property
    def seeded(self):
        """Whether any group has several runs."""
        return any(len(group.runs) > 1 for group in self.groups)


# --- As tables --------------------------------------------------------------------------------------------------------


def figure(value, pattern):
    """A number as text; a dash for None."""
    return format(value, pattern) if math.isfinite(value) else DASH


def runs_table(comparison):
    rows = [["run", "state", "steps", "validation loss", "training", "step"]]
    for run in comparison.runs:
        step = run.seconds / run.steps if run.steps else math.nan
        rows.append([run.label, run.state, f"{run.steps:,}", figure(run.loss, ".5f"),
                     figure(run.seconds, ",.2f") + " s", figure(1e3 * step, ",.2f") + " ms"])
    return rows


def last_table(comparison):
    rows = [["last validation", "loss", "steps", "seconds", "tokens"]]
    for run in comparison.runs:
        last = run.validations[-1] if run.validations else None
        rows.append([run.label] + ([DASH] * 4 if last is None else
                                   [figure(last.loss, ".5f"), f"{last.step:,}", figure(last.seconds, ",.2f"),
                                    figure(last.tokens, ",.0f")]))
    return rows


def target_table(comparison):
    rows = [[f"to {comparison.target:g}", "steps", "seconds", "tokens"]]
    for run in comparison.runs:
        found = reached(run, comparison.target)
        rows.append([run.label] + (["not reached", DASH, DASH] if found is None else
                                   [figure(found.step, ",.1f"), figure(found.seconds, ",.2f"),
                                    figure(found.tokens, ",.0f")]))
    return rows


def ends_table(comparison):
    """What the runs needed to reach the target or, without a target, until their last validation."""
    return last_table(comparison) if comparison.target is None else target_table(comparison)


def differences_table(comparison):
    return [["key", *(run.label for run in comparison.runs)],
            *([key, *values] for key, values in comparison.differences.items())]


def groups_table(comparison):
    target = comparison.target
    rows = [["group", "runs", "mean", "deviation", "95 % interval"] +
            ([] if target is None else [f"p, mean <= {target:g}"])]
    for group in comparison.groups:
        losses, spread = group.losses, [DASH] * (len(rows[0]) - 3)
        if len(losses) > 1:
            low, high = t_test.interval(losses)
            spread = [f"{statistics.stdev(losses):.5f}", f"{low:.5f} to {high:.5f}"]
            spread += [] if target is None else [f"{t_test.below(losses, target):.3g}"]
        rows.append([group.label, len(losses), f"{group.mean:.5f}", *spread])
    return rows


def tests_table(comparison):
    rows = [["group", "minus", "difference", "95 % interval", "p"]]
    for a, b, found in comparison.tests:
        rows.append([a.label, b.label, f"{found.mean:+.5f}", f"{found.low:+.5f} to {found.high:+.5f}",
                     f"{found.p_value:.3g}"])
    return rows


def tables(comparison):
    """The tables that have something to say."""
    shown = [runs_table(comparison), ends_table(comparison)]
    shown += [differences_table(comparison)] if comparison.differences else []
    shown += [groups_table(comparison)] if comparison.seeded else []
    return shown + ([tests_table(comparison)] if comparison.tests else [])


# --- As a page --------------------------------------------------------------------------------------------------------


def styles(comparison):
    """Label, colour and dashes of each run. With groups of seeds, runs have those of their group."""
    if not comparison.seeded:
        return [(run.label, *chart.colour(i)) for i, run in enumerate(comparison.runs)]
    of_run = {id(run): (group.label, *chart.colour(i)) for i, group in enumerate(comparison.groups)
              for run in group.runs}
    return [of_run.get(id(run), ("in no group", chart.GREY, "")) for run in comparison.runs]


def scaled(largest, unit):
    """Factor and name of an axis whose numbers then stay short."""
    for factor, word in ((1e9, "billion "), (1e6, "million ")):
        if largest >= factor:
            return 1 / factor, word + unit
    return 1, unit


def loss_chart(comparison, name, unit):
    """Validation loss against a field of the validations."""
    places = [getattr(v, name) for run in comparison.runs for v in run.validations]
    largest = max(filter(math.isfinite, places), default=0)
    factor, across = scaled(largest, unit)
    lines = [chart.Line([(factor * getattr(v, name), v.loss) for v in run.validations], colour, dashes, dots=True)
             for run, (_, colour, dashes) in zip(comparison.runs, styles(comparison))]
    return page.drawing(chart.draw(f"Validation loss by {name.replace('step', 'steps')}", lines, across,
                                   "nats per token", most=chart.top_of_losses(lines), target=comparison.target))


def tile_of_loss(comparison, choose, word):
    found = choose((run for run in comparison.runs if math.isfinite(run.loss)), key=lambda run: run.loss, default=None)
    return ((DASH, f"{word} validation loss") if found is None else
            (f"{found.loss:.4f}", f"{word} validation loss, {found.label}"))


def target_tiles(comparison):
    there = [(found, run) for run in comparison.runs if (found := reached(run, comparison.target))]
    content = [(f"{len(there)} of {len(comparison.runs)}", f"runs reach {comparison.target:g}")]
    for name, pattern, unit in (("step", ",.0f", "steps"), ("seconds", ",.1f", "seconds")):
        first = min(there, key=lambda pair: getattr(pair[0], name), default=None)
        content.append((DASH, f"fewest {unit} to {comparison.target:g}") if first is None else
                       (figure(getattr(first[0], name), pattern), f"fewest {unit} to {comparison.target:g}, "
                                                                  f"{first[1].label}"))
    return content


def tiles(comparison):
    lowest = tile_of_loss(comparison, min, "lowest")
    if comparison.target is not None:
        return page.tiles([lowest, *target_tiles(comparison)])
    ended = [run for run in comparison.runs if run.finished and math.isfinite(run.seconds)]
    quickest = min(ended, key=lambda run: run.seconds, default=None)
    return page.tiles([lowest, tile_of_loss(comparison, max, "highest"),
                       (f"{len(ended)} of {len(comparison.runs)}", "runs have finished"),
                       (DASH, "shortest training") if quickest is None else
                       (figure(quickest.seconds, ",.1f") + " s", f"shortest training, {quickest.label}")])


def document(comparison):
    count, target = len(comparison.runs), comparison.target
    body = [
        tiles(comparison),
        page.section("Validation loss", chart.legend(dict.fromkeys(styles(comparison))), page.side_by_side(
            loss_chart(comparison, "step", "steps"), loss_chart(comparison, "seconds", "seconds of training"),
            loss_chart(comparison, "tokens", "tokens"),
            page.table(ends_table(comparison), text=1))),
        page.section("Runs", page.table(runs_table(comparison), text=2))]
    if comparison.seeded:
        body.append(page.section("Seeds", page.paragraph(
            "Finished runs whose decks differ in the seed alone form a group." + ("" if target is None else
            " The p-value is that of a one-sided t test: how likely so low a mean would be if the expected loss were "
            "the target.")),
            page.table(groups_table(comparison), text=1)))
    if comparison.tests:
        body.append(page.section("Differences of groups", page.paragraph(
            "Welch's t test, two-sided: how likely so large a difference would be if both groups had the same expected "
            "loss."), page.table(tests_table(comparison), text=2)))
    body.append(page.section("Decks", page.table(differences_table(comparison), "text")
                             if comparison.differences else page.paragraph("All decks are the same.")))
    folders = ", ".join(f"<code>{html.escape(str(run.folder))}</code>" for run in comparison.runs)
    body.append(page.section("Directories", f"<p>{folders}</p>"))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return page.document(f"Comparison of {count} run{'s' if count > 1 else ''}",
                         today if target is None else f"target validation loss {target:g}  ·  {today}", *body)


@advised()
def write(folders, target, output):
    """Reads the runs and writes their page; returns the comparison. The target may be None. Throws ToolError."""
    comparison = Comparison(read_runs(folders), target)
    tool.replace(output, document(comparison))
    return comparison


@advised()
def write_page_of(folder, target, output):
    """Writes the page of a single run; returns its report. Throws ToolError."""
    run, = read_runs([folder])
    report, found = run_page.read_report(run), reached(run, target)
    report.further.append([f"to {target:g}", "not reached" if found is None else
                           f"{figure(found.step, ',.1f')} steps, {figure(found.seconds, ',.2f')} s, "
                           f"{figure(found.tokens, ',.0f')} tokens"])
    tool.replace(output, run_page.document(report))
    return report


def main():
    arguments = parse_arguments()
    files = [path for path in arguments.folder if path.is_file()]
    if files and len(files) < len(arguments.folder):
        other = next(path for path in arguments.folder if path not in files)
        raise tool.ToolError(f"{other}: not a file, as {files[0]} is: directories of runs and files benchmark.json "
                             "cannot be compared with each other")
    if files:
        results = machines.write(arguments.folder, arguments.output)
        tool.say(f"{machines.text(results)}\n\n{arguments.output}")
        return
    if len(distinct(arguments.folder)) == 1:
        report = write_page_of(arguments.folder[0], arguments.target, arguments.output)
        tool.say(f"{run_page.text(report)}\n\n{arguments.output}")
        return
    comparison = write(arguments.folder, arguments.target, arguments.output)
    tool.say("\n\n".join(map(tool.aligned, tables(comparison))) + f"\n\n{arguments.output}")


if __name__ == "__main__":
    tool.run(main)
