"""docs/tutorial.md works as written: its commands run in their order, and print what the page says.

An indented block holds commands, and a fenced one of "text" what those before it print: there "..." stands for
anything, also for lines; figures may differ, which are numbers with a point, comma or colon and those of tokens/s; and
further lines of steps may come, as on slow machines. At "^C" the commands get the signal of Ctrl-C once the line above
it has come. Of a fenced block of "c", which a model has written, the first word must be that of the output.
Usage: test_tutorial.py PROGRAM MPIRUN.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from pages import ROOT, blocks

sys.path.insert(0, str(ROOT / "tests" / "support"))
import small_run  # noqa: E402

PAGE = ROOT / "docs" / "tutorial.md"
SECONDS = 300  # limit for a block of commands
FIGURE = r"(?<![\w.])\d+(?:[.,:]\d+(?:e[+-]\d+)?|(?= tokens/s))"
SIGNAL = "^C"


def sections(text):
    """(commands, kind of output, output) of each block of commands; without shown output kind and output are empty."""
    found = []
    for kind, inside in blocks(text):
        if kind is None:
            found.append((inside, "", ""))
        elif kind in ("text", "c"):
            found[-1] = (found[-1][0], kind, inside)
    return found


def pattern(line):
    """A regular expression for a shown line."""
    words = re.split(rf"(\.\.\.|\s+|{FIGURE})", line.strip())
    for i in range(1, len(words), 2):  # what lies between is as it is
        words[i] = ".*" if words[i] == "..." else r"\s+" if words[i].isspace() else r"\d+(?:[.,:]\d+(?:e[+-]\d+)?)?"
    return "".join(word if i % 2 else re.escape(word) for i, word in enumerate(words))


def missing(shown, printed):
    """The first shown line that is not printed where it should be, or None."""
    at, gap = 0, False
    for line in shown:
        if line.strip() == "...":
            gap = True
            continue
        while at < len(printed) and not re.fullmatch(pattern(line), printed[at].strip()):
            if not gap and not printed[at].startswith("step "):
                return line
            at += 1
        if at == len(printed):
            return line
        at, gap = at + 1, False
    return None


class Job:
    """Commands in a session of their own, as a terminal would run them."""

    def __init__(self, commands, folder):
        path = f"{Path(small_run.MPIRUN).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(["bash", "-e", "-c", commands], cwd=folder, env=os.environ | {"PATH": path},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", start_new_session=True)
        self.printed = []

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def run(self, interrupt_after=None):
        """The exit code. SIGINT comes after the first line that matches."""
        timer = threading.Timer(SECONDS, self.signal, [signal.SIGKILL])
        timer.start()
        try:
            with self.process:
                for line in self.process.stdout:
                    self.printed.append(line.rstrip("\n"))
                    if interrupt_after and re.fullmatch(interrupt_after, line.strip()):
                        interrupt_after = None
                        self.signal(signal.SIGINT)
        finally:
            timer.cancel()
            self.signal(signal.SIGKILL)
        return self.process.returncode


def make_folder(folder):
    """What the page has of the repository."""
    (folder / "build" / "cpu" / "bin").mkdir(parents=True)
    (folder / "build" / "cpu" / "bin" / "nanorun").symlink_to(small_run.PROGRAM)
    (folder / "jobscripts").symlink_to(ROOT / "jobscripts")


class Tutorial(unittest.TestCase):
    def check(self, commands, kind, shown, folder):
        lines = shown.splitlines()
        at = lines.index(SIGNAL) if SIGNAL in lines else None
        job = Job(commands, folder)
        code = job.run(pattern(lines[at - 1]) if at else None)
        said = "\n".join([commands, *job.printed])
        self.assertEqual(code, 75 if at else 0, said)
        if kind == "c":
            self.assertEqual(job.printed[0].split()[0], shown.split()[0], said)
        elif kind:
            # What watch.py says in the background comes at any time, and is not shown.
            printed = [line for line in job.printed if not line.startswith("watching ")]
            lost = missing([line for line in lines if line != SIGNAL], printed)
            self.assertIsNone(lost, f"not printed: {lost}\n{said}")

    def test_page(self):
        text = PAGE.read_text()
        with tempfile.TemporaryDirectory(prefix="nanorun-tutorial-") as name:
            folder = Path(name)
            make_folder(folder)
            found = sections(text)
            self.assertGreaterEqual(len(found), 9)
            for commands, kind, shown in found:
                self.check(commands, kind, shown, folder)
            for path in re.findall(r"`((?:outputs|tutorial)/[^`*]*)`", text):
                if path != "outputs/tutorial/stop":
                    self.assertTrue((folder / path).exists(), path)


class Reading(unittest.TestCase):
    def test_blocks(self):
        page = "# A\n\n    a \\\n      b\n\n    c\n\n```text\nx\n```\n\nand\n\n    d\n\nend\n\n    e\n\n```c\ny\n```\n"
        self.assertEqual(sections(page), [("a \\\n  b\n\nc\n", "text", "x\n"), ("d\n", "", ""), ("e\n", "c", "y\n")])

    def test_times_may_differ_and_steps_may_not(self):
        shown = "step  30/150  loss 3.5  52 ms  34235 tokens/s  ETA 00:04 ..."
        for line, same in (("step 30/150  loss 13.25  52 ms  8 tokens/s  ETA 10:04 and more", True),
                           ("step 31/150  loss 3.5  52 ms  34235 tokens/s  ETA 00:04 x", False),
                           ("step 30/150  loss 3.5  53 ms  34235 tokens/s  ETA 00:04 x", False),
                           ("step 30/150  loss nan  52 ms  34235 tokens/s  ETA 00:04 x", False)):
            self.assertEqual(bool(re.fullmatch(pattern(shown), line)), same, line)

    def test_missing_lines_are_found(self):
        printed = ["a", "b", "c", "d"]
        for shown, lost in ((["a", "b"], None), (["b"], "b"), (["a", "c"], "c"), (["a", "...", "c"], None),
                            (["...", "c", "...", "a"], "a"), (["...", "d", "e"], "e"), (["...", "d"], None)):
            self.assertEqual(missing(shown, printed), lost, shown)
        self.assertIsNone(missing(["a", "step 2", "b"], ["a", "step 1", "step 2", "step 3", "b"]))


if __name__ == "__main__":
    small_run.main()
