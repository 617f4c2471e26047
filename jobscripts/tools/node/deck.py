#!/usr/bin/env python3
"""Prints what jobscripts/measure_node.sh needs of a deck and its overrides.

facts: the number of stages, the steps, and the tokens and length of a validation. schedule: overrides, one a line, for
a schedule of --steps with all stages. prefixes: overrides for the prefix table in the directory --data, or for none.
windows: a deck with a stage for each of three windows in the place of one that grows, in which train.length and
window.first, last, quantum and rounding are no more to be set. Standard library only.
"""

import argparse
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # the folder of tool.py

import tool

WINDOWS = (128, 896, 1792)
BLOCK = 128  # tokens, of window.kind = "block"
# The program's defaults of keys.
STEPS, LENGTH, VALIDATION_TOKENS, VALIDATION_LENGTH = 1770, 49152, 10485760, 262144
# Keys in whose place those of stages are read.
REPLACED = {"train.length", "window.first", "window.last", "window.quantum", "window.rounding"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("what", choices=PRINTED)
    parser.add_argument("deck")
    parser.add_argument("--steps", type=int, default=1, help="of the schedule")
    parser.add_argument("--data", default=".", help="directory of the data")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return tool.parse(parser)


class Deck:
    def __init__(self, path, overrides):
        self.path, self.tables = path, tool.read_toml(path)
        self.overrides = [(key, value) for key, _, value in (one.partition("=") for one in overrides)]
        self.stages = tool.require(self.tables.get("stage", []), list, path, "stage")

    def value(self, section, key, default, kind, **bounds):
        table = tool.require(self.tables.get(section, {}), dict, self.path, section)
        return tool.require(table.get(key, default), kind, self.path, f"{section}.{key}", **bounds)

    def number(self, section, key, default, least=0):
        """A whole number of the deck."""
        return self.overridden(f"{section}.{key}", self.value(section, key, default, int, least=least, most=10**12), least)

    def overridden(self, name, value, least=0):
        """A whole number that has this value in the deck."""
        given = [text for key, text in self.overrides if key == name]
        if not given:
            return value
        if not re.fullmatch(r"[+-]?\d{1,12}", given[-1]):
            raise tool.ToolError(f"{name} should be a whole number, not {given[-1]!r}")
        return tool.require(int(given[-1]), int, "the overrides", name, least=least)

    def rows(self, name):
        """Tables of an array of tables."""
        rows = tool.require(self.tables.get(name, []), list, self.path, name)
        return [tool.require(row, dict, self.path, f"{name}.{i}") for i, row in enumerate(rows)]

    def counts(self):
        """Keys that count steps of the schedule, from its begin or its end, and their values above 0."""
        for key in ("muon_momentum_cooldown", "momentum_mix_from"):
            if value := self.number("optimizer", key, 0):
                yield f"optimizer.{key}", value
        for table, key in (("group", "period_from"), ("average", "from_last")):
            for i, row in enumerate(self.rows(table)):
                name = f"{table}.{i}.{key}"
                value = tool.require(row.get(key, 0), int, self.path, name, least=0, most=10**9)
                if value := self.overridden(name, value):
                    yield name, value


def facts(deck, _):
    return " ".join(map(str, (len(deck.stages), deck.number("train", "steps", STEPS, 1),
                              deck.number("validation", "tokens", VALIDATION_TOKENS),
                              deck.number("validation", "length", VALIDATION_LENGTH, 1))))


def schedule(deck, arguments):
    """Overrides for a schedule of --steps. Its extension has a few steps at least. A tied head is untied at the same
    share of the run, in a step in which Adam updates. What the deck counts in steps begins at the same share, too, and
    averages of weights remember the same share, unless their rates are overridden."""
    steps = arguments.steps
    whole, extension = deck.number("train", "steps", STEPS, 1), deck.number("train", "extension_steps", 0)
    short = max(round(extension * steps / whole), min(extension, 4, max(1, steps // 10)))
    lines = [f"train.steps={steps}"]
    if extension:
        lines.append(f"train.extension_steps={short}")
    untie = deck.number("train", "untie_step", 0, -1)
    if untie > 0:
        period = deck.number("optimizer", "adam_period", 1, 1)
        step = round(untie * (steps - short) / max(1, whole - extension))
        lines.append(f"train.untie_step={step // period * period + period - 1}")
    for key, value in deck.counts():
        lines.append(f"{key}={max(1, round(value * steps / whole))}")
    for i, average in enumerate(deck.rows("average")):
        name = f"average.{i}.rate"
        rate = tool.require(average.get("rate", 0.0), float, deck.path, name, least=0, most=1)
        if all(key != name for key, _ in deck.overrides):
            lines.append(f"{name}={min(1.0, rate * whole / steps)}")
    return "\n".join(lines)


def prefixes(deck, arguments):
    """Override for the prefix table in the directory of the data, by the name that the deck gives. If the file is not
    there, overrides that leave targets without prefixes."""
    named = deck.value("data", "prefix_table", "", str)
    if not named or any(key == "data.prefix_table" for key, _ in deck.overrides):
        return ""
    path = os.path.join(arguments.data, os.path.basename(named))
    if os.path.isfile(path):
        return f"data.prefix_table={tool.toml_string(path)}"
    lines = ['data.prefix_table=""']
    for i in range(len(deck.stages)):
        lines += [f"stage.{i}.prefix=0", f"stage.{i}.prefix_end=0"]
    return "\n".join(lines)


def lines_without(text, keys):
    """The lines of a deck except those that set one of the keys, each named section.key."""
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"\s*\[+\s*(\w+)\s*\]", line):
            section = heading[1]
        key = re.match(r"\s*(\w+)\s*=", line)
        if not key or f"{section}.{key[1]}" not in keys:
            yield line


def stage_of(window, unit, length):
    """Lines of a stage. Long windows have `window` tokens, short ones half as many, in whole units."""
    return ["", "[[stage]]", f"share = {1 / len(WINDOWS)}", f"length = {length}",
            f"short_window = {unit * max(1, window // unit // 2)}", f"long_window = {window}"]


def windows(deck, _):
    blocks = deck.value("window", "kind", "block", str) == "block"
    unit = BLOCK if blocks else deck.number("window", "quantum", BLOCK, 1)
    length = deck.number("train", "length", LENGTH, 1)
    lines = [*lines_without(tool.read_text(deck.path), REPLACED)]
    for window in WINDOWS:
        lines += stage_of(window, unit, length)
    return "\n".join(lines)


PRINTED = {"facts": facts, "schedule": schedule, "prefixes": prefixes, "windows": windows}


def main():
    arguments = parse_arguments()
    deck = Deck(arguments.deck, arguments.overrides)
    text = PRINTED[arguments.what](deck, arguments)
    if text:
        tool.say(text)


if __name__ == "__main__":
    tool.run(main)
