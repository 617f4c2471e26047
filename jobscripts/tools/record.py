#!/usr/bin/env python3
"""Trains a deck once with each of the seeds 1 to N, and says whether the runs make a record by the speedrun's rules:
the mean validation loss is below the target, with a p-value under 0.01.

Fetches the tokens of FineWeb that the deck names and are not there. The same command goes on where it was interrupted.
OUT/record.txt and OUT/record.json have the result, OUT/seed_1 and so on the runs. jobscripts/record.sh starts it. Exit
codes: 0 the bar holds, 1 a run has not finished, 2 the runs cannot be started, 3 the bar does not hold.
"""

import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import re
import shlex
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import ensemble
import get_fineweb
import program
import runs
import t_test
import tool

SCRIPT = "record.sh"  # the script that starts this tool
BAR = 0.01  # largest p-value of a record
MISSED = 3  # exit code
STOPPED = 75  # exit code of the program
OWNED = ("run.name", "run.seed", "run.outputs")
TRAIN, VALIDATION = "fineweb_train_000001.h5", "fineweb_val_000000.h5"


def parse_arguments():
    parser = argparse.ArgumentParser(prog=SCRIPT, description=tool.summary(__doc__), allow_abbrev=False)
    parser.add_argument("deck", type=pathlib.Path, metavar="DECK")
    parser.add_argument("--seeds", type=int, required=True, metavar="N", help="runs, with run.seed = 1 to N")
    parser.add_argument("--target", type=float, default=runs.TARGET,
                        help="validation loss to reach (default: %(default)s)")
    parser.add_argument("--data", type=tool.directory, metavar="DIR",
                        help="directory of the tokens and of the tokenizer's table (default: what the deck names)")
    parser.add_argument("--shards", type=int, default=8, metavar="N",
                        help="FineWeb's training files: fewer are completed (default: %(default)s, enough for the "
                             "records)")
    parser.add_argument("--out", type=tool.directory, metavar="DIR",
                        help="directory of the result and of the runs (default: outputs/DECK_runs)")
    arguments = program.parse(parser, OWNED, SCRIPT)
    if not 1 <= arguments.seeds <= 10**4:
        raise tool.ToolError(f"--seeds must be a whole number from 1 to 10000, not {arguments.seeds}")
    if not 0 < arguments.target < 1e3:
        raise tool.ToolError(f"--target must be a positive number, not {arguments.target:g}")
    if not 1 <= arguments.shards <= get_fineweb.DATASETS["fineweb10B"][2]:
        raise tool.ToolError(f"--shards: fineweb10B has 1 to {get_fineweb.DATASETS['fineweb10B'][2]} training files, "
                             f"not {arguments.shards}")
    return arguments


class Record:
    """The runs of one command: the deck, the seeds, where and how they run."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.program = program.Program(arguments.program, arguments.launcher)
        tool.require_regular(arguments.deck)
        self.overrides = list(arguments.override)
        self.deck = self.resolve()
        if arguments.data:
            self.overrides += move_data(self.deck, arguments.data)
            self.deck = self.resolve()
        if self.deck["validation.tokens"] == 0 or not self.deck["data.validation"]:
            raise tool.ToolError(f"{arguments.deck}: it has no validation, whose loss is compared with the target")
        self.ranks = self.program.choose_ranks(arguments.ranks, self.deck["train.sequences"])
        self.out = program.make_directory(arguments.out or pathlib.Path("outputs") / f"{arguments.deck.stem}_runs")
        self.lock = program.take_lock(self.out)

    def resolve(self):
        """The deck with every key, as the program prints it. Throws ToolError where the deck cannot be trained."""
        plan = self.program.call("train", str(self.arguments.deck), *self.overrides, "--dry-run")
        sections = [part for part in plan.split("\n\n") if part.startswith("[")]
        if not sections:
            raise tool.ToolError(f"{self.program.path} has printed no deck: it is not nanorun, or not of this version")
        return runs.flat(tool.need("tomllib").loads("\n".join(sections)))

    def folder(self, seed):
        return self.out / f"seed_{seed}"

    def words(self, seed):
        """Arguments of the program for a seed."""
        return ("train", str(self.arguments.deck), *self.overrides, f"run.seed={seed}", f"run.name=seed_{seed}",
                f"run.outputs={tool.toml_string(self.out)}")


# --- Data -------------------------------------------------------------------------------------------------------------


def move_data(deck, directory):
    """Overrides that replace the directory of all data that the deck names."""
    def moved(key):
        return [os.path.join(program.pattern(directory), os.path.basename(path)) for path in deck[key]]

    keys = [f"{key}=[{', '.join(map(tool.toml_string, moved(key)))}]" for key in ("data.train", "data.validation")]
    if deck["data.prefix_table"]:
        keys.append(f"data.prefix_table={tool.toml_string(directory / os.path.basename(deck['data.prefix_table']))}")
    return keys


def fineweb_directory(patterns, name):
    """The directory into which a file of FineWeb may be fetched: that of the only pattern that matches its name, else
    None."""
    if len(patterns) != 1 or not fnmatch.fnmatchcase(name, os.path.basename(patterns[0])):
        return None
    directory = os.path.dirname(patterns[0])
    plain = re.sub(r"\\(.)", r"\1", directory)
    return pathlib.Path(plain) if program.pattern(plain) == directory else None


def count(directory, pattern):
    """Number of files in the directory that match the last part of the pattern."""
    try:
        return len(fnmatch.filter(os.listdir(directory), os.path.basename(pattern)))
    except OSError:
        return 0


def fetch_missing(record):
    """Fetches the files of FineWeb that the deck names and that are not there. It leaves other data to the program,
    which says what is wrong."""
    deck, wanted = record.deck, record.arguments.shards
    train, validation = deck["data.train"], deck["data.validation"]
    directory = fineweb_directory(train, TRAIN)
    if directory is None or fineweb_directory(validation, VALIDATION) != directory:
        return
    lacking = []
    if count(directory, validation[0]) == 0:
        lacking.append(VALIDATION)
    if (there := count(directory, train[0])) < wanted:
        lacking.append(f"{wanted - there} of {wanted} files {os.path.basename(train[0])}")
    table = pathlib.Path(deck["data.prefix_table"] or os.devnull)
    needs_table = table == directory / get_fineweb.TABLE_NAME and not os.path.lexists(table)
    if needs_table:
        lacking.append(get_fineweb.TABLE_NAME)
    if not lacking:
        return
    what = f"{directory} lacks {', '.join(lacking)}"
    tool.say(f"{what}: fetching")
    words = ["--shards", str(wanted), "--data", str(directory), "--program", record.program.path]
    try:
        get_fineweb.get_all(get_fineweb.parse_arguments([*words, *(["--tokenizer"] if needs_table else [])]))
    except tool.ToolError as error:
        raise tool.ToolError(f"{what}, and {error}", error.code) from None


# --- Runs -------------------------------------------------------------------------------------------------------------


def read_summary(folder):
    """The summary of a run that has made all its steps, else None."""
    summary = runs.read_summary(folder) if folder.is_dir() else {}
    return summary if summary.get("finished") and summary.get("final_val_loss") is not None else None


def changes_training(key):
    """Whether the key changes the training or the time of its steps. All other keys may change when a run goes on."""
    return (not key.startswith(("run.", "stop.", "checkpoint.")) or
            key in ("run.seed", "run.reproducible", "checkpoint.weights"))


def require_same(record, seed):
    """Throws ToolError if the directory of the seed holds a run of another command."""
    folder = record.folder(seed)
    summary = read_summary(folder)
    if not os.path.lexists(folder / "deck.toml"):
        if summary:
            raise tool.ToolError(f"{folder} is a finished run without deck.toml: remove it, or name another directory "
                                 "with --out")
        return
    there, wanted = runs.read_deck(folder), record.deck | {"run.seed": seed}
    for key in sorted(wanted.keys() | there.keys()):
        if changes_training(key) and wanted.get(key) != there.get(key):
            raise tool.ToolError(f"{folder} is a run with {key} = {text_of(there.get(key))}, not "
                                 f"{text_of(wanted.get(key))}: name another directory with --out")
    if summary and summary.get("ranks") != record.ranks:
        raise tool.ToolError(f"{folder} is a run with ranks = {text_of(summary.get('ranks'))}, not {record.ranks}: "
                             "give --ranks, or name another directory with --out")


def data_of(folder):
    """The data of a finished run: "train" and "validation" -> shards, tokens and checksum. Empty in runs of earlier
    programs."""
    path, summary = folder / "summary.json", read_summary(folder) or {}
    data = tool.require(summary.get("data", {}), dict, path, "data")
    return {part: tool.require(read, dict, path, f"data.{part}") for part, read in data.items()}


def require_same_data(record):
    """Throws ToolError unless the finished runs have read the same tokens."""
    # Where documents are packed, a run that was continued may have opened another number of training shards.
    packs = record.deck["data.packing"] == "documents"
    first, of_first = None, {}
    for seed in range(1, record.arguments.seeds + 1):
        folder = record.folder(seed)
        data = data_of(folder)
        if first is None and data:
            first, of_first = folder, data
        for part in sorted(data.keys() & of_first.keys()):
            is_vague = packs and part == "train" and data[part].get("shards") != of_first[part].get("shards")
            if data[part] != of_first[part] and not is_vague:
                raise tool.ToolError(f"{folder} has read other tokens than {first}: the files of data.{part} have "
                                     "changed; remove one of the two, or name another directory with --out")


def text_of(value):
    return "none" if value is None else json.dumps(value, default=str)


def train(record, seed):
    """Trains one seed to the end, from where it was interrupted. Throws ToolError."""
    name, log = f"seed {seed} of {record.arguments.seeds}", record.folder(seed).with_suffix(".log")
    if read_summary(record.folder(seed)):
        tool.say(f"{name}: has finished")
        return
    tool.say(f"{name}: trains on {record.ranks} rank{'s' if record.ranks > 1 else ''}; {log}")
    code = record.program.start(record.ranks, record.words(seed), log, saves=True)
    if code != 0:
        why = "stopped early; the same command continues it" if code == STOPPED else program.failure(code, log)
        raise tool.ToolError(f"{record.folder(seed)}: {why}", tool.NOT_DONE)
    summary = read_summary(record.folder(seed))
    if summary is None:
        raise tool.ToolError(f"{record.folder(seed)}: the run has left no final validation loss", tool.NOT_DONE)
    tool.say(f"{name}: validation loss {summary['final_val_loss']:.5f}, train time {summary['train_seconds']:.2f} s")


def train_all(record):
    seeds = range(1, record.arguments.seeds + 1)
    for seed in seeds:
        require_same(record, seed)
    require_same_data(record)
    if not all(read_summary(record.folder(seed)) for seed in seeds):
        fetch_missing(record)
    for seed in seeds:
        train(record, seed)
        require_same_data(record)


# --- The result -------------------------------------------------------------------------------------------------------


def judge(samples, target):
    """Whether the bar holds, and the sentence that says so. `samples`: one for each seed."""
    mean = statistics.mean(sample.validation_loss for sample in samples)
    whose = "The record's bar" if target == runs.TARGET else f"The bar of --target {target:g}"
    bar = f"mean validation loss below {target:g} with p < {BAR:g}"
    if len(samples) < 2:
        return False, f"{whose} does not hold ({bar}): one run has no p-value."
    p_value = ensemble.p_value(samples, target)
    holds = mean < target and p_value < BAR
    return holds, f"{whose} {'holds' if holds else 'does not hold'} ({bar}): {mean:.5f}, p = {p_value:.3g}."


def origin(folder):
    """Where the figures of a run come from, as far as its program has recorded it."""
    path, summary = folder / "summary.json", read_summary(folder)
    kinds = {"first_step": int, "data": dict, "provenance": dict}
    return {key: tool.require(summary.get(key, kind()), kind, path, key) for key, kind in kinds.items()}


def remarks(runs_found):
    """Lines on what makes the runs differ by more than their seeds, and their times no times of a record."""
    lines = []
    continued = [str(run["seed"]) for run in runs_found if run["first_step"]]
    if continued:
        lines.append(f"Continued from a checkpoint: seed {', '.join(continued)}. Its train time is that of its parts, "
                     "not a record's.")
    first, *others = (run["provenance"] for run in runs_found)
    differing = [key for key in (*runs.BUILD, "devices")
                 if any(one.get(key) != first.get(key) for one in others if one)]
    if differing:
        lines.append(f"The runs are not of one build and kind of machine: they differ in {', '.join(differing)}.")
    return lines


def result(record, samples):
    arguments = record.arguments
    losses = [sample.validation_loss for sample in samples]
    several = len(samples) > 1
    return {
        "format": "nanorun record", "format_version": 1, "holds": judge(samples, arguments.target)[0],
        "target": arguments.target, "mean_validation_loss": statistics.mean(losses),
        "deviation": statistics.stdev(losses) if several else None,
        "p_value": ensemble.p_value(samples, arguments.target) if several else None,
        "mean_train_seconds": statistics.mean(sample.train_seconds for sample in samples),
        "runs": [sample._asdict() | origin(record.folder(sample.seed)) for sample in samples],
        "deck": str(arguments.deck), "overrides": record.overrides, "ranks": record.ranks,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([SCRIPT, *sys.argv[1:]]),
    }


def heading(found):
    """Title of the result: what was run."""
    words = shlex.join([found["deck"], *found["overrides"]])
    provenance = found["runs"][0]["provenance"]
    build = " ".join(str(provenance.get(key, "")) for key in ("version", "commit")).strip()
    return f"{words} on {found['ranks']} rank{'s' if found['ranks'] > 1 else ''}, {found['date']}, nanorun {build}"


def main():
    arguments = parse_arguments()
    if arguments.seeds > 1:
        t_test.distribution()  # before hours of training
    record = Record(arguments)
    try:
        train_all(record)
    except KeyboardInterrupt:
        raise tool.ToolError("interrupted; the same command goes on, and a run from its last checkpoint",
                             tool.NOT_DONE) from None
    samples = ensemble.read_runs([record.folder(seed) for seed in range(1, arguments.seeds + 1)])
    holds, sentence = judge(samples, arguments.target)
    found = result(record, samples)
    lines = "\n".join([sentence, *remarks(found["runs"])])
    text = f"{heading(found)}\n\n{ensemble.table(samples, arguments.target)}\n\n{lines}"
    tool.replace(record.out / "record.json", json.dumps(found, indent=2) + "\n")
    tool.replace(record.out / "record.txt", text + "\n")
    tool.say(f"\n{text}")
    return 0 if holds else MISSED


if __name__ == "__main__":
    tool.run(main, SCRIPT)
