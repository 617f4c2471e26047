"""The tools in whatever environment they are started, on files and names as other systems write them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import TOOLS, ToolTest, load, small_run, write_run

import deadline
import runs
import tool

TOOL_SCRIPTS = sorted(path.name for path in TOOLS.glob("*.py") if "__main__" in path.read_text())
LOSSES = {0: 6.0, 10: 4.0, 20: 3.5}
LATIN = os.fsdecode(b"caf\xe9")  # a name from an old file system: not UTF-8
MARK = b"\xef\xbb\xbf"


def as_windows_writes(path):
    path.write_bytes(MARK + path.read_bytes().replace(b"\n", b"\r\n"))


class SafePath(ToolTest):
    def test_modules_are_found(self):
        """Also where Python leaves the script's directory out of its path, and never in the current directory."""
        for name in ("tool", "metrics", "page", "study"):
            (self.folder / f"{name}.py").write_text("raise SystemExit('a stranger')\n")
        self.assertGreater(len(TOOL_SCRIPTS), 9)
        for script in TOOL_SCRIPTS:
            for options, variables in (((), {"PYTHONSAFEPATH": "1"}), (("-I",), {}), (("-P",), {})):
                with self.subTest(script=script, options=options):
                    job = deadline.run([sys.executable, "-B", *options, TOOLS / script, "--help"],
                                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                                       env=os.environ | variables)
                    self.assertEqual((job.returncode, job.stderr), (0, ""))
                    self.assertIn("usage:", job.stdout)

    def test_a_tool_starts_through_a_link(self):
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "compare").symlink_to(TOOLS / "compare.py")
        write_run(Path("a"), LOSSES)
        job = deadline.run(["bin/compare", "a"], capture_output=True, text=True, timeout=60,
                           env=os.environ | {"PYTHONSAFEPATH": "1"})
        self.assertEqual((job.returncode, job.stderr), (0, ""))


class Names(ToolTest):
    """Directories and files whose names are bytes that are not UTF-8."""

    def setUp(self):
        super().setUp()
        (self.folder / LATIN).mkdir()
        os.chdir(self.folder / LATIN)
        self.run_folder = write_run(Path(LATIN), LOSSES)
        (self.run_folder / "deck.toml").write_text(
            (self.run_folder / "deck.toml").read_text().replace(json.dumps(LATIN), '"cafe"'))

    def assert_done(self, script, *arguments):
        code, output, error = self.end(script, *arguments)
        self.assertEqual((code, error), (0, ""))
        return output

    def test_compare(self):
        output = self.assert_done("compare.py", self.run_folder, write_run(Path("b"), LOSSES, 2), "-o",
                                  f"{LATIN}.html")
        self.assertRegex(output, r"(?m)^caf\\xe9 +finished")
        self.assertTrue(output.endswith("\ncaf\\xe9.html\n"), output)
        page = Path(f"{LATIN}.html").read_text(encoding="utf-8")
        self.assertIn("<code>caf\\xe9</code>", page)

    def test_watch(self):
        (self.run_folder / "log.txt").write_bytes(b"caf\xe9 \x1b[1m\n")
        self.assertIn("caf\\xe9: finished, step 20/20", self.assert_done("watch.py", self.run_folder, "--once"))
        self.assertIn("caf\\xe9", Path("watch.html").read_text(encoding="utf-8"))

    def test_ensemble(self):
        self.assertIn("3.50000", self.assert_done("ensemble.py", self.run_folder))
        copy = shutil.copytree(self.run_folder, f"{LATIN}.1")
        Path(copy, "summary.json").unlink()
        code, _, error = self.end("ensemble.py", self.run_folder, copy)
        self.assertEqual((code, error), (0, "left out: caf\\xe9.1/summary.json is missing\n"))

    def test_plot(self):
        import numpy as np

        load("tests/scaling/support.py").write_trace(self.run_folder / "trace.h5", np.full((20, 2, 13), 0.1), 1024)
        summary = json.loads((self.run_folder / "summary.json").read_text())
        (self.run_folder / "summary.json").write_text(json.dumps(summary | {"tokens_per_second": 1.0}))
        self.assertEqual(self.assert_done("plot_run.py", self.run_folder), "caf\\xe9/run.png\n")
        self.assertTrue((self.run_folder / "run.png").read_bytes().startswith(b"\x89PNG"))

    def test_sweep(self):
        small_run.write_deck(Path("."))
        Path(f"{LATIN}.toml").write_text('deck = "deck.toml"\nname = "a"\nseeds = [1]\n')
        self.assertEqual(self.assert_done("sweep.py", f"{LATIN}.toml", "--list"), "1  a_1  run.seed=1\n")

    def test_refusals(self):
        self.assert_refused("compare.py", f"{LATIN}.none", names=["caf\\xe9.none/deck.toml"])
        self.assert_refused("sweep.py", f"{LATIN}.none", "--list", names=["caf\\xe9.none"])

    def test_text(self):
        self.assertEqual(tool.visible(Path(os.fsdecode(b"\xc3\xb6\xff/x"))), "ö\\xff/x")
        self.assertEqual(tool.visible("\ud83d half"), "\\ud83d half")
        self.assertEqual(tool.one_line(f"a\n{LATIN}"), "a caf\\xe9")


class Texts(ToolTest):
    """Text files with a byte-order mark and CRLF, as editors on Windows write them."""

    def test_run(self):
        folder = write_run(Path("a"), LOSSES)
        found = runs.read_run(folder)
        for name in ("deck.toml", "summary.json", "metrics.jsonl"):
            as_windows_writes(folder / name)
        self.assertEqual(runs.read_run(folder), found)
        self.assertEqual(len(found.validations), 3)

    def test_study(self):
        from study.study_file import read_study

        small_run.write_deck(Path("."))
        Path("study.toml").write_text(load("tests/scaling/support.py").study_text())
        found = read_study("study.toml")
        identity = found.identity()
        for name in ("study.toml", "deck.toml"):
            as_windows_writes(Path(name))
        self.assertEqual(read_study("study.toml"), found)
        self.assertEqual(found.identity(), identity, "a run goes on whatever the deck's lines end with")

    def test_machines(self):
        """Files benchmark.json, of which the tool reads all keys."""
        Path("benchmark.json").write_text("{}")
        refused = self.end("compare.py", "benchmark.json")
        as_windows_writes(Path("benchmark.json"))
        self.assertEqual(self.end("compare.py", "benchmark.json"), refused)
        self.assertNotIn("not JSON", refused[2])

    def test_other_encodings(self):
        folder = write_run(Path("a"), LOSSES)
        for name in ("deck.toml", "summary.json"):
            text = (folder / name).read_text()
            (folder / name).write_text(text, encoding="utf-16")
            self.assert_refused("compare.py", folder, names=[f"a/{name}: not UTF-8"])
            (folder / name).write_text(text)


if __name__ == "__main__":
    small_run.main()
