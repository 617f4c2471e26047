"""The page of a single run: figures computed by hand, and which rules they break."""

import contextlib
import io
import json
import math
import os
import re
from pathlib import Path

from support import ROOT, Page, ToolTest, small_run, step_line, write_run

import run_page
import runs
import tool

PHASES = ("data", "forward", "head", "backward", "reduce_gradients", "muon", "adam", "gather_weights", "sync",
          "validation", "checkpoint", "output", "other")
LOSSES = {0: 6.0, 10: 4.0, 20: 3.5, 30: 3.0}
PROVENANCE = {"version": "1.2.3", "commit": "abc", "compiler": "GNU 12", "blas": "a <BLAS>",
              "hosts": {"n1": 2, "n2": 2}, "devices": {"CPU": 4}, "command": "nanorun train deck.toml", "started": "2026-11-26T11:00:44+00:00"}


def times(**seconds):
    """Phases of a summary.json, of 30 steps: by default 3 s of forward alone."""
    table = dict.fromkeys(PHASES, 0.0) | {"forward": 3.0} | seconds
    return {name: {"min_seconds": s / 2, "avg_seconds": s, "max_seconds": 2 * s} for name, s in table.items()}


def gpu(clock=1900, **throttled):
    return {"min_clock_mhz": 1500, "avg_clock_mhz": clock, "avg_power_watts": 600, "max_power_watts": 0,
            "throttled": dict.fromkeys(run_page.HEAT, 0) | {"sw_power_cap": 90} | throttled}


class RunPageTest(ToolTest):
    count = 0

    def report(self, metrics=None, **summary):
        """The report of a run whose summary has these values too, and what is said."""
        self.count += 1
        usual = {"ranks": 4, "tokens_per_second": 10240.0, "phases": times(), "provenance": PROVENANCE}
        folder = write_run(Path(f"run{self.count}"), LOSSES, summary=usual | summary)
        if metrics is not None:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
        return self.read(folder)

    def read(self, folder):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            report = run_page.read_report(runs.read_runs([folder])[0])
        self.said = said.getvalue()
        return report

    def write_trace(self, folder, slow=1.0, provenance="{}"):
        """30 steps of two ranks, 10 ms in each phase; rank 1 takes `slow` times as long in "forward"."""
        import h5py
        import numpy as np

        seconds = np.full((30, 2, len(PHASES)), 0.01)
        seconds[:, 1, PHASES.index("forward")] *= slow
        with h5py.File(folder / "trace.h5", "w") as file:
            file.attrs["phases"], file.attrs["provenance"] = ",".join(PHASES), provenance
            file["step"], file["ranks"] = np.arange(30), np.full(30, 2)
            file["tokens"], file["loss"] = np.full(30, 1024.0), np.ones(30)
            file["seconds"], file["communication"] = seconds, np.zeros((30, 2))
            file["validation_step"], file["validation_loss"] = np.array([0]), np.array([6.0])

    def broken(self, report):
        return [rule.what for rule in run_page.RULES if rule.breach(report)]


class Rules(RunPageTest):
    def test_nothing_stands_out(self):
        report = self.report(gpus=[gpu(), gpu(1890)], gpu_looks=100, time_to_first_step_seconds=2.5)
        self.assertEqual((run_page.notes(report), self.broken(report)), (["Nothing stands out."], []))

    def test_each_rule_is_broken_by_its_quantity_alone(self):
        """And not by a value a little below."""
        cases = {
            "reading of tokens, of the time": lambda x: {"phases": times(data=0.0613 * x)},
            "gradients, weights and waiting, of the time": lambda x: {"phases": times(
                sync=0.43 * x, reduce_gradients=0.43 * x, gather_weights=0.43 * x)},
            "validation, of the time": lambda x: {"phases": times(validation=0.334 * x)},
            "checkpoints, of the time": lambda x: {"phases": times(checkpoint=0.158 * x)},
            "log, metrics and trace, of the time": lambda x: {"phases": times(output=0.0613 * x)},
            "start to end of step 1": lambda x: {"time_to_first_step_seconds": 60.1 * x},
            "time in which a rank had no processor": lambda x: {"processor_share": 1 - 0.101 * x},
            "looks that found a GPU hot or short of power": lambda x: {
                "gpus": [gpu(), gpu(hw_thermal_slowdown=int(51 * x))], "gpu_looks": 1000},
            "lowest clock of a GPU below the median": lambda x: {
                "gpus": [gpu(1900), gpu(1900 * (1 - 0.0301 * x)), gpu(1900)], "gpu_looks": 1000},
        }
        for what, summary in cases.items():
            with self.subTest(what=what):
                self.assertEqual(self.broken(self.report(**summary(1))), [what])
                self.assertEqual(self.broken(self.report(**summary(0.97))), [])

    def test_losses(self):
        last = [step_line(1), step_line(2, loss=None), step_line(3, loss=None)]
        report = self.report(last)
        self.assertEqual(run_page.notes(report), ["Steps whose loss is no number: 2. The training has diverged: lower "
                                                  "the learning rates."])
        risen = write_run(Path("risen"), {0: 6.0, 10: 4.0, 20: 4.021})
        self.assertEqual(self.broken(self.read(risen)), ["last validation loss above the lowest"])
        self.assertEqual(self.broken(self.read(write_run(Path("level"), {0: 6.0, 10: 4.0, 20: 4.019}))), [])

    def test_steps_that_vary(self):
        """A step is judged by its neighbours: a second stage may be slower as a whole."""
        usual = [step_line(step, ms=100.0 if step <= 50 else 300.0) for step in range(1, 101)]
        self.assertEqual(self.broken(self.report(usual)), [])
        for line in usual[20:26]:
            line["ms"] = 151.0
        self.assertEqual(self.broken(self.report(usual)), ["steps 1.5 times as long as their neighbours"])
        self.assertTrue(math.isnan(run_page.slow_steps(self.report(usual[:20]))))

    def test_limits_are_those_of_the_documentation(self):
        text = (ROOT / "docs" / "comparing.md").read_text()
        rows = re.findall(r"(?m)^\| (.*) \| ([\d.]+)((?: %| s| nats)?) \|$", text)
        self.assertEqual(len(rows), len(run_page.RULES))
        for (what, most, unit), rule in zip(rows, run_page.RULES):
            self.assertTrue(what.startswith(rule.what), what)
            self.assertEqual((float(most) / (100 if rule.unit == "%" else 1), unit.strip()), (rule.most, rule.unit))

    def test_the_greatest_breach_comes_first(self):
        notes = run_page.notes(self.report(finished=False, stopped_by="SIGTERM received", phases=times(
            validation=1.0, data=1.0), gpus=[gpu(), gpu(), gpu(1000)], gpu_looks=9))
        self.assertEqual([note.partition(":")[0] for note in notes],
                         ["The run is stopped", "Lowest clock of a GPU below the median",
                          "Reading of tokens, of the time", "Validation, of the time"])
        self.assertIn("The GPU of rank 2 is slower", notes[1])
        self.assertIn(": 20.0 %. ", notes[2])


class Sources(RunPageTest):
    def test_slowest_rank_of_the_trace(self):
        """Of 10 phases outside of collectives, validation and checkpoints but one lasts three times as long on rank 1:
        8 + 1 parts and 8 + 3, whose mean is 10."""
        folder = write_run(Path("a"), LOSSES, summary={"ranks": 2})
        self.write_trace(folder, slow=3.0)
        report = self.read(folder)
        self.assertEqual((self.said, report.slowest, report.ranks), ("", 1, 2))
        work = [name for name in PHASES if name not in ("reduce_gradients", "gather_weights", "sync", "validation",
                                                        "checkpoint")]
        self.assertAlmostEqual(report.excess, (len(work) + 2) / (len(work) + 1) - 1, places=9)
        for found, expected in zip(report.phases["forward"], (0.02, 0.01, 0.03)):
            self.assertAlmostEqual(found, expected, places=9)
        self.assertAlmostEqual(report.share("forward"), 2 / 14, places=9)
        self.assertIn("The others wait for rank 1:", "\n".join(run_page.notes(report)))
        self.assertIn(["slowest rank, above the mean", "1, +11.1 %"], run_page.figures_table(report))

    def test_phases_are_those_of_the_summary(self):
        """It counts what comes after the last step too, of which the trace knows nothing."""
        folder = write_run(Path("a"), LOSSES, summary={"ranks": 2, "phases": times(validation=0.4)})
        self.write_trace(folder, slow=3.0)
        report = self.read(folder)
        self.assertEqual((self.said, report.slowest), ("", 1))
        self.assertEqual(report.phases["data"], (0, 0, 0))
        for found, expected in zip(report.phases["validation"], (0.4 / 30, 0.2 / 30, 0.8 / 30)):
            self.assertAlmostEqual(found, expected, places=9)
        self.assertEqual(self.broken(report), ["slowest rank above the mean", "validation, of the time"])

    def test_a_run_that_has_not_ended(self):
        """The trace says what ran where."""
        folder = write_run(Path("a"), LOSSES)
        (folder / "summary.json").unlink()
        self.write_trace(folder, provenance=json.dumps(PROVENANCE))
        report = self.read(folder)
        self.assertEqual(run_page.notes(report)[0], "The run has not ended.")
        rows = dict(run_page.origin_table(report))
        self.assertEqual((rows["program"], rows["hosts (ranks)"], rows["nodes"], rows["ranks"]),
                         ("nanorun 1.2.3 (abc)", "n1 (2), n2 (2)", "2", "2"))
        self.assertEqual(report.tokens_per_second, 10240)

    def test_a_run_that_goes_on(self):
        """Its summary is of the start before, which ended at step 20."""
        report = self.report(finished=False, stopped_by="SIGTERM received", steps=20, train_seconds=2.0)
        self.assertEqual(run_page.notes(report), ["The run has not ended."])
        rows = run_page.figures_table(report)
        for row in (["state", "not ended"], ["steps", "30"], ["training", "3.00 s"]):
            self.assertIn(row, rows)

    def test_without_modules_the_summary_has_the_phases(self):
        folder = write_run(Path("a"), LOSSES, summary={"phases": times(), "first_step": 10})
        self.write_trace(folder)
        (self.folder / "h5py.py").write_text("raise ImportError('broken')\n")
        code, output, error = self.end("compare.py", folder, env=os.environ | {"PYTHONPATH": str(self.folder)})
        self.assertEqual(code, 0)
        self.assertRegex(error, r"^the slowest rank is not known: .* no module h5py .*\n$")
        self.assertRegex(output, r"(?m)^forward +100\.0 % +150\.00 +75\.00 +300\.00$")

    def test_damage(self):
        folder = write_run(Path("a"), LOSSES)
        for contents in (b"\x89HDF nonsense", b""):
            (folder / "trace.h5").write_bytes(contents)
            code, _, error = self.end("compare.py", folder)
            self.assertEqual((code, error.count("\n")), (0, 1), error)
            self.assertIn("a/trace.h5", error)
        (folder / "trace.h5").unlink()
        merits = json.loads((folder / "summary.json").read_text())
        for key, value in (("gpus", 1), ("gpus", [3]), ("gpus", [{"throttled": 1}]),
                           ("gpus", [{"throttled": {"x": "1"}}]), ("gpus", [{"avg_clock_mhz": "fast"}]),
                           ("phases", []), ("phases", {"data": 3}),
                           ("phases", {"data": {"avg_seconds": 1}}), ("provenance", []), ("ranks", "1"),
                           ("energy_joules", "1"), ("seconds_per_20m_tokens", "1"), ("tokens_per_second", [])):
            (folder / "summary.json").write_text(json.dumps(merits | {key: value}))
            with self.subTest(key=key, value=value):
                self.assert_refused("compare.py", folder, names=["a/summary.json: "])


class Output(RunPageTest):
    def test_page_and_terminal(self):
        folder = write_run(Path("<b>&c"), LOSSES, summary={
            "ranks": 4, "provenance": PROVENANCE, "phases": times(validation=1.0), "tokens_per_second": 10240.0,
            "seconds_per_20m_tokens": 1953.125, "gpus": [gpu(), gpu(hw_slowdown=3)], "gpu_looks": 100, "mfu": 0.4567,
            "peak_device_memory_bytes": 17.1e9, "time_to_first_step_seconds": 1.5})
        code, output, error = self.end("compare.py", folder, folder, "--target", 3.25, "-o", "page.html")
        self.assertEqual((code, error), (0, ""))
        self.assertTrue(output.endswith("\n\npage.html\n"))
        for line in (r"validation loss +3\.00000", r"tokens/s +10,240",
                     r"time of 20 million tokens +1,953\.1 s", r"MFU, with attention +45\.7 %",
                     r"to 3\.25 +25\.0 steps, 2\.50 s, 25,600 tokens", r"validation +25\.0 % +33\.33 +16\.67 +66\.67",
                     r"Validation, of the time: 25\.0 %\. .*"):
            self.assertRegex(output, rf"(?m)^{line}$")
        text = Path("page.html").read_text()
        page = Page(text)
        self.assertEqual(page.texts["h1"], ["Run <b>&c"])
        self.assertEqual(page.texts["h2"], ["What to look at first", "Training", "Figures", "Where the time goes",
                                            "GPUs", "What ran where", "What was looked at"])
        for cell in ("n1 (2), n2 (2)", "a <BLAS>", "nanorun train deck.toml", "1,900 MHz",
                     "hw_slowdown 3, sw_power_cap 90"):
            self.assertTrue(any(cell in found for found in page.texts["td"]), cell)
        self.assertEqual(page.texts["b"], ["3.0000", "3.0 s", "10,240", "100.0 ms"])
        charts = [element["aria-label"] for element in page.elements["svg"] if "aria-label" in element]
        self.assertEqual(charts[:3], ["Loss by steps", "Loss by seconds of training", "Time of a step"])
        self.assertIn("Of the losses, the line with dots is that of validation, the other that of training.",
                      page.texts["p"])
        self.assertNotRegex(text.lower(), "energy|joule")
        self.assertEqual(page.addresses, [])
        self.assertNotIn("http", text)

    def test_energy(self):
        report = self.report(energy_joules=123456.0, joules_per_step=12.5, joules_per_token=0.00123,
                             tokens_per_wh=2926829, energy_source="GPUs: counters", mfu_6nd=0.4)
        for row in (["energy of the run", "123.5 kJ"], ["energy of a step", "12.5 J"], ["energy of a token", "1.23 mJ"],
                    ["tokens per Wh", "2,926,829"], ["energy is that of", "GPUs: counters"], ["MFU, 6 N D", "40.0 %"]):
            self.assertIn(row, run_page.figures_table(report))
        self.assertIn("energy of a token", Page(run_page.document(report)).texts["span"])

    def test_picture_of_plot_run(self):
        folder = write_run(Path("a"), LOSSES)
        (folder / "run.png").write_bytes(b"\x89PNG")
        page = Page(run_page.document(self.read(folder)))
        self.assertEqual([element["src"] for element in page.elements["img"]], ["data:image/png;base64,iVBORw=="])
        (folder / "run.png").unlink()
        (folder / "run.png").mkdir()
        with self.assertRaisesRegex(tool.ToolError, "a/run.png: not a regular file"):
            run_page.document(self.read(folder))


if __name__ == "__main__":
    small_run.main()
