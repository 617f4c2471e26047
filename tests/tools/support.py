"""What the tests of the tools share: output directories of runs with known figures. Standard library only."""

import html.parser
import importlib.util
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "jobscripts" / "tools"
sys.path[:0] = [str(TOOLS), str(ROOT / "tests" / "support")]
import deadline  # noqa: E402
import small_run  # noqa: E402

TOKENS = 4 * 256  # tokens of a step
WRONG_JSON = ["{", "[]", "1", "null", '"text"', "\0", "[" * 100000, "1" * 5000, "nan", b"\xff\xfe{}"]

# TOML that nests too deep for a parser, or is too long.
DEEP_TOML = ["a." * 5000 + "a = 1", "a." * 100000 + "a = 1", "[" + "a." * 5000 + "a]",
             "[grid]\na = " + "[" * 400 + "]" * 400, "a = " + "{a = " * 100 + "1" + "}" * 100, "#" * (1 << 20) + "\n"]


def load(path):
    """The module of a file of the repository, whose name another module may have too."""
    specification = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def limit_memory():
    """Of a process that begins."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def step_line(step, **values):
    return {"step": step, "loss": 5.0 - step / 10, "ms": 100.0, "tokens_per_second": 10240.0,
            "train_seconds": step / 10, "lr": 0.05, "momentum": 0.9, "window": 128} | values


def validation_line(step, loss, **values):
    return {"step": step, "validation_loss": loss, "train_seconds": step / 10, "step_ms": 100.0} | values


def metrics_text(losses):
    """Of losses by step: a line of every step and validation."""
    lines = [step_line(step) for step in range(1, max(losses, default=0) + 1)]
    lines += [validation_line(step, loss) for step, loss in losses.items()]
    lines.sort(key=lambda line: line["step"])
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_run(folder, losses, seed=1, summary=None, tables="", **train):
    """A run that has finished, with validation losses by step; `train`: further keys of [train]; `tables`: the rest
    of the deck."""
    folder.mkdir(parents=True)
    train = {"steps": max(losses), "sequences": 4, "length": 256} | train
    deck = ["[run]", f"name = {json.dumps(folder.name)}", f"seed = {seed}", "[train]",
            *(f"{key} = {json.dumps(value)}" for key, value in train.items())]
    (folder / "deck.toml").write_text("\n".join(deck) + f"\n{tables}")
    (folder / "metrics.jsonl").write_text(metrics_text(losses))
    last = max(losses)
    merits = {"finished": True, "stopped_by": "", "steps": last, "final_train_loss": 3.0, "train_seconds": last / 10,
              "final_val_loss": None if math.isnan(losses[last]) else losses[last]} | (summary or {})
    (folder / "summary.json").write_text(json.dumps(merits))
    return folder


class Page(html.parser.HTMLParser):
    """What is in a page, of which every tag must be closed in order: `texts` of each tag, the attributes of the
    elements, and `addresses` that it refers to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.elements, self.addresses = [], {}, {}, []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.setdefault(tag, []).append(dict(attributes))
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action")]
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        opened = self.open.pop()
        assert tag == opened, (tag, opened)

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data


class ToolTest(unittest.TestCase):
    """Each test has a directory of its own, which is the current one."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-tools-")
        self.addCleanup(temporary.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        self.folder = Path(temporary.name)
        os.chdir(self.folder)

    def end(self, script, *arguments, **options):
        """Exit code, standard output and standard error of a tool."""
        job = deadline.run([sys.executable, "-B", TOOLS / script, *map(str, arguments)], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=60, **options)
        return job.returncode, job.stdout, job.stderr

    def assert_refused(self, script, *arguments, names=(), code=2, **options):
        """Ends with one line that names what is wrong."""
        ended, output, error = self.end(script, *arguments, **options)
        self.assertEqual((ended, output, error.count("\n")), (code, "", 1), error)
        self.assertTrue(error.startswith(f"{script}: "), error)
        for name in names:
            self.assertIn(str(name), error)
