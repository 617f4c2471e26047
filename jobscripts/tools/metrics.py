"""metrics.jsonl of a run: one JSON object a line for every step and validation, read while the program writes it."""

import bisect
import json
import math
import os

import tool

KEPT_BYTES = 64  # last bytes that were read; if they have changed, the file was begun anew
LARGEST = 1e30


def number(record, key, where):
    """The value of a key of a line; nan where it is absent, null or not finite."""
    value = record.get(key)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return math.nan
    return float(tool.require(value, float, where, key, least=-LARGEST, most=LARGEST))


def tokens_of(line):
    """Tokens of a step, computed from its line; nan where the line lacks a field."""
    tokens = line.get("tokens_per_second", math.nan) * line.get("ms", math.nan) / 1e3
    return round(tokens) if math.isfinite(tokens) else math.nan


class Trained:
    """Tokens that a run has been trained on after so many steps. Only this class counts them: steps differ in length
    where the deck has stages."""

    def __init__(self):
        self.steps, self.tokens = [0], [0]

    def add(self, step, tokens, total=math.nan):
        """Takes in step `step`, counted from 1, of `tokens` tokens. `total`: tokens of all steps so far, nan where they
        are not known. Steps before it of which nothing is known count as many tokens as it."""
        if not math.isfinite(total):
            total = self.tokens[-1] + (step - self.steps[-1]) * tokens
        self.steps.append(step)
        self.tokens.append(total)

    def after(self, step):
        """Tokens after `step` steps, interpolated between the steps that are known."""
        i = bisect.bisect_left(self.steps, step)
        if i == len(self.steps) or self.steps[i] == step:
            return self.tokens[min(i, len(self.steps) - 1)]
        (a, b), (low, high) = self.steps[i - 1:i + 1], self.tokens[i - 1:i + 1]
        return low + (step - a) / (b - a) * (high - low)


class Metrics:
    """Steps and validations of a metrics.jsonl, each a dictionary of its line, by ascending step."""

    def __init__(self, path):
        self.path = path
        self.restarts = 0  # how often the file was begun anew
        self.forget()

    def forget(self):
        self.offset, self.line, self.kept = 0, 0, b""
        self.steps, self.validations = [], []

    def trained(self):
        trained = Trained()
        for line in self.steps:
            trained.add(line["step"], tokens_of(line), line.get("tokens", math.nan))
        return trained

    def poll(self):
        """Reads and returns the lines that were added since the last time; begins anew where the file was. A file that
        is not there yet has none. Throws ToolError."""
        if not os.path.lexists(self.path):
            return []
        tool.require_regular(self.path)
        with tool.using(self.path), open(self.path, "rb") as file:
            file.seek(max(0, self.offset - len(self.kept)))
            if file.read(len(self.kept)) != self.kept:
                self.restarts += 1
                self.forget()
            file.seek(self.offset)
            added = file.read()
        whole = added[:added.rfind(b"\n") + 1]  # the last line may not be complete
        found = [record for line in whole.splitlines() if (record := self.take(line))]
        self.offset += len(whole)
        self.kept = (self.kept + whole)[-KEPT_BYTES:]
        return found

    def take(self, line):
        """The record of a line; None for lines of another kind."""
        self.line += 1
        where = f"{self.path}: line {self.line}"
        with tool.using(where, ValueError, RecursionError, kind="JSON"):
            record = json.loads(line)
        tool.require(record, dict, where, "the line")
        lines = self.validations if "validation_loss" in record else self.steps if "loss" in record else None
        if lines is None:
            return None
        step = tool.field(record, "step", int, where, least=0)
        # A run that continues repeats the steps after its checkpoint: its lines hold.
        for kind in (self.steps, self.validations):
            while kind and (kind[-1]["step"] > step or (kind is lines and kind[-1]["step"] == step)):
                kind.pop()
        lines.append({key: number(record, key, where) for key in record if key != "step"} | {"step": step})
        return lines[-1]
