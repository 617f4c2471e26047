"""The comparison of runs, against figures computed by hand."""

import contextlib
import io
import itertools
import json
import math
import os
import statistics
from pathlib import Path

from support import TOKENS, Page, ToolTest, small_run, write_run

import compare
import runs
import tool
from metrics import Trained

LOSSES = {0: 6.0, 10: 4.0, 20: 3.5, 30: 3.0}
FIRST, SECOND = (3.281, 3.279, 3.284, 3.276), (3.290, 3.270, 3.305)


class CompareTest(ToolTest):
    def compared(self, *folders, target=3.28):
        """The comparison, and what is said about the runs."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            return compare.Comparison(runs.read_runs(folders), target), said.getvalue()

    def write_groups(self):
        """Two groups of seeds, with 20 and with 30 steps."""
        folders = [write_run(Path(f"a_{seed}"), {0: 6.0, 20: loss}, seed) for seed, loss in enumerate(FIRST, 1)]
        return folders + [write_run(Path(f"b_{seed}"), {0: 6.0, 30: loss}, seed)
                          for seed, loss in enumerate(SECOND, 1)]


class Reading(CompareTest):
    def test_target_lies_between_validations(self):
        """3.1 is 0.8 of the way from 3.5 at step 20 to 3.0 at step 30; a step takes 0.1 s."""
        run, = runs.read_runs([write_run(Path("a"), LOSSES)])
        found = compare.reached(run, 3.1)
        for value, expected in zip(found, (28, 2.8, 28 * TOKENS)):
            self.assertAlmostEqual(value, expected, places=9)
        self.assertEqual(compare.reached(run, 3.5), (20, 2.0, 20 * TOKENS))
        self.assertEqual(compare.reached(run, 7), (0, 0, 0))
        self.assertIsNone(compare.reached(run, 2.9))

    def test_the_first_time_at_the_target_counts(self):
        run, = runs.read_runs([write_run(Path("a"), {0: 6.0, 10: math.nan, 20: 3.0, 30: 5.0, 40: 2.0})])
        self.assertEqual(compare.reached(run, 3.2).step, 20)  # nothing to interpolate from

    def test_trace_where_metrics_are_missing(self):
        """A step of two ranks trains for 10 of 13 phases, 0.1 s each."""
        import numpy as np
        from h5py import File

        folder = write_run(Path("a"), LOSSES)
        (folder / "metrics.jsonl").unlink()
        tokens = [float(TOKENS)] * 15 + [3.0 * TOKENS] * 15  # two stages
        phases = ("data", "forward", "head", "backward", "reduce_gradients", "muon", "adam", "gather_weights", "sync",
                  "validation", "checkpoint", "output", "other")
        with File(folder / "trace.h5", "w") as file:
            file.attrs["phases"] = ",".join(phases)
            file["step"], file["ranks"] = np.arange(30), np.full(30, 2)
            file["tokens"], file["loss"] = np.array(tokens), np.ones(30)
            file["seconds"], file["communication"] = np.full((30, 2, len(phases)), 0.1), np.zeros((30, 2))
            file["validation_step"] = np.array(list(LOSSES))
            file["validation_loss"] = np.array(list(LOSSES.values()))
        run, = runs.read_runs([folder])
        self.assertEqual([(v.step, v.loss, v.tokens) for v in run.validations],
                         [(step, loss, sum(tokens[:step])) for step, loss in LOSSES.items()])
        for validation in run.validations:
            self.assertAlmostEqual(validation.seconds, validation.step, places=9)

    def test_tokens_are_those_that_were_trained(self):
        """Two stages of 10 steps: of 1024 tokens each, and of 3072. The deck's train.length is read by neither."""
        folder = write_run(Path("a"), {0: 6.0, 10: 4.0, 20: 3.0}, length=9999)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if "loss" in line and line["step"] > 10:
                line["tokens_per_second"] *= 3
        expected = [(0, 0), (10, 10 * 1024), (20, 40 * 1024)]

        def write(kept):
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
            return [(v.step, v.tokens) for v in runs.read_run(folder).validations]

        self.assertEqual(write(lines), expected)
        self.assertEqual(compare.reached(runs.read_run(folder), 3.5).tokens, 25 * 1024)
        # A full disk has cost lines. Those of the program say how many tokens there were so far.
        lacking = [line for line in lines if "validation_loss" in line or line["step"] not in (4, 13)]
        self.assertEqual(write(lacking), expected)
        said = [line | {"tokens": 100 * line["step"]} for line in lines if line["step"] % 10 == 0]
        self.assertEqual(write(said), [(0, 0), (10, 1000), (20, 2000)])

    def test_tokens_between_known_steps(self):
        trained = Trained()
        self.assertEqual(trained.after(7), 0)
        trained.add(4, 50, 200)
        trained.add(8, 100, 800)
        self.assertEqual([trained.after(step) for step in (0, 2, 4, 6, 8, 9)], [0, 100, 200, 500, 800, 800])

    def test_runs_that_have_not_ended(self):
        folder = write_run(Path("a"), LOSSES)
        (folder / "summary.json").unlink()
        stopped = write_run(Path("b"), LOSSES, summary={"finished": False, "stopped_by": "SIGTERM received"})
        found, said = self.compared(folder, stopped)
        self.assertEqual([row[1:4] for row in compare.runs_table(found)[1:]],
                         [["not ended", "30", "3.00000"], ["stopped: SIGTERM received", "30", "3.00000"]])
        self.assertEqual(found.groups, [])
        self.assertEqual(said, "in no group: a has no final validation loss\n"
                               "in no group: b has no final validation loss\n")

    def test_labels(self):
        for parent in ("x", "y"):
            write_run(Path(parent) / "a", LOSSES)
        found, _ = self.compared(Path("x/a"), Path("y/a"), write_run(Path("b"), LOSSES), Path("b"))
        self.assertEqual([run.label for run in found.runs], ["x/a", "y/a", "b"])


class Statistics(CompareTest):
    def test_groups_are_runs_that_differ_in_seed_and_name(self):
        found, said = self.compared(*self.write_groups())
        self.assertEqual(said, "")
        self.assertEqual([(group.label, group.losses) for group in found.groups],
                         [("train.steps=20", list(FIRST)), ("train.steps=30", list(SECOND))])
        rows = compare.groups_table(found)
        self.assertEqual(rows[1][:4], ["train.steps=20", 4, "3.28000", f"{statistics.stdev(FIRST):.5f}"])
        self.assertEqual(rows[2][:4], ["train.steps=30", 3, "3.28833", f"{statistics.stdev(SECOND):.5f}"])
        # The quantiles of 3 degrees of freedom: 3.182446 for 0.975. The mean of the first group is the target.
        reach = 3.182446 * statistics.stdev(FIRST) / 2
        self.assertEqual(rows[1][4:], [f"{3.28 - reach:.5f} to {3.28 + reach:.5f}", "0.5"])

    def test_welch_between_groups(self):
        (a, b, difference), = self.compared(*self.write_groups())[0].tests
        self.assertEqual((a.label, b.label), ("train.steps=20", "train.steps=30"))
        self.assertAlmostEqual(difference.mean, 3.28 - 3.2883333333, places=9)
        # By Welch and Satterthwaite t = -0.8109 with 2.110 degrees of freedom: between the quantiles of 2 and of 3.
        errors = statistics.variance(FIRST) / 4, statistics.variance(SECOND) / 3
        reach = (difference.high - difference.low) / 2 / math.sqrt(sum(errors))
        self.assertTrue(3.182446 < reach < 4.302653, reach)
        self.assertAlmostEqual((difference.low + difference.high) / 2, difference.mean, places=9)
        self.assertTrue(0.4766 < difference.p_value < 0.5026, difference.p_value)

    def test_many_groups_are_compared_with_the_best(self):
        for count, expected in ((5, 10), (6, 5)):
            groups = [compare.Group([self.fake(3 + i + j) for j in (0, 0.1)], str(i)) for i in range(count)]
            tested = compare.pairs(groups + [compare.Group([self.fake(1.0)], "alone")])
            self.assertEqual(len(tested), expected)
        self.assertEqual({second.label for _, second in tested}, {"0"})

    def fake(self, loss):
        return runs.Run(Path("x"), {}, {}, [runs.Validation(1, loss, 1.0, 1.0)])

    def test_runs_that_are_no_sample(self):
        a = write_run(Path("a"), LOSSES)
        copy = write_run(Path("a.1"), LOSSES)
        (copy / "deck.toml").write_text((a / "deck.toml").read_text())
        found, said = self.compared(a, copy, write_run(Path("b"), LOSSES))
        self.assertEqual([run.label for run in found.groups[0].runs], ["a", "b"])
        self.assertEqual(said, "in no group: a.1 is an earlier run of the name a\n"
                               "warning: 2 runs of all runs have the seed 1; the tests take runs for independent\n")

    def test_differences_of_decks(self):
        found, _ = self.compared(write_run(Path("a"), LOSSES, 1, rate=0.5),
                                 write_run(Path("b"), LOSSES, 2, rate="x", more=[1]))
        self.assertEqual(found.differences, {"run.seed": ["1", "2"], "train.rate": ["0.5", '"x"'],
                                             "train.more": ["—", "[1]"]})


    def test_stages_and_groups_differ_key_by_key(self):
        """As the command line names the keys."""
        tables = "[[stage]]\nlength = 512\nshare = 0.5\n[[stage]]\nlength = {}\nshare = 0.5\n[[group]]\nlr = {}\n"
        found, _ = self.compared(write_run(Path("a"), LOSSES, tables=tables.format(1024, 0.4)),
                                 write_run(Path("b"), LOSSES, tables=tables.format(2048, 0.4) + "[[group]]\nlr = 1\n"))
        self.assertEqual(found.differences, {"stage.1.length": ["1024", "2048"], "group.1.lr": ["—", "1"]})
        self.assertEqual([group.label for group in found.groups],
                         ["stage.1.length=1024, group.1.lr=—", "stage.1.length=2048, group.1.lr=1"])

    def test_long_values_are_cut(self):
        """Each by itself, to where they begin to differ: a further key is seen as well."""
        shards = [[f"data/of/some/users/directory/shard_{i:04}.h5" for i in range(300)] for _ in range(3)]
        shards[1][150] = "other.h5"
        found, _ = self.compared(*(write_run(Path(f"r{i}"), LOSSES, shards=names, rate=i)
                                   for i, names in enumerate(shards)))
        cells = found.differences["train.shards"]
        self.assertEqual(found.differences["train.rate"], ["0", "1", "2"])
        self.assertTrue(all(len(cell) <= compare.LONGEST_VALUES[0] + 2 for cell in cells), cells)
        self.assertIn('_0149.h5", "data/of/some', cells[0])
        self.assertIn('_0149.h5", "other.h5"', cells[1])
        self.assertEqual(cells[0], cells[2])
        for group, rate in zip(found.groups, "012"):
            self.assertTrue(group.label.endswith(f"train.rate={rate}"), group.label)

    def test_labels_of_many_keys_have_them_all(self):
        """A terminal's line ends after 400 characters."""
        found, _ = self.compared(*(write_run(Path(f"r{i}"), LOSSES, **{f"key_{k}": "x" * 30 + str(i) for k in range(8)})
                                   for i in range(2)))
        for i, group in enumerate(found.groups):
            self.assertLess(len(group.label), 400)
            self.assertEqual(group.label.count("="), 8)
            self.assertEqual(group.label.count(f'{i}"'), 8, group.label)

    def test_cut_values_stay_distinct(self):
        """The third differs at once, the other two only behind what is shown."""
        values = ["x" * 200 + "1", "x" * 200 + "2", "y" * 300, "—", '"short"']
        shown = compare.cut(values)
        self.assertEqual(len(set(shown)), 5, shown)
        self.assertTrue(all(len(cell) < 60 for cell in shown), shown)
        self.assertEqual(compare.cut(["a" * 48, "b"]), ["a" * 48, "b"])


class Output(CompareTest):
    def test_without_a_target(self):
        """As sweep.py writes the page where the sweep has none."""
        found, _ = self.compared(*self.write_groups(), target=None)
        text = "\n\n".join(map(tool.aligned, compare.tables(found)))
        page = Page(compare.document(found))
        for where in (text, *page.texts["td"], *page.texts["th"], *page.texts["p"], *page.texts["text"],
                      *page.texts["span"], *page.texts["b"]):
            self.assertNotRegex(where, "target|p, mean|reach")
        self.assertIn(["a_1", "3.28100", "20", "2.00", "20,480"], compare.ends_table(found))
        self.assertIn("highest validation loss, b_3", page.texts["span"])
        marked = Page(compare.document(self.compared(*map(Path, ("a_1", "b_1")))[0]))
        self.assertIn("target 3.28", marked.texts["text"])

    def test_page_and_tables(self):
        folders = [*self.write_groups(), write_run(Path("<b>&c"), {0: 6.0, 20: math.nan}, 9)]
        code, output, error = self.end("compare.py", *folders, "--target", 3.28, "-o", "page.html")
        self.assertEqual((code, error), (0, "in no group: <b>&c has no final validation loss\n"))
        self.assertTrue(output.endswith("\npage.html\n"))
        self.assertRegex(output, r"(?m)^a_4 +finished +20 +3\.27600 +2\.00 s +100\.00 ms$")
        self.assertRegex(output, r"(?m)^a_1 +not reached +— +—$")
        self.assertRegex(output, r"(?m)^train\.steps +20 +20 +20 +20 +30 +30 +30 +20$")
        self.assertRegex(output, r"(?m)^train\.steps=20 +4 +3\.28000 +0\.00337 ")
        self.assertRegex(output, r"(?m)^train\.steps=20 +train\.steps=30 +-0\.00833 ")
        text = Path("page.html").read_text()
        page = Page(text)
        self.assertEqual(page.texts["h1"], ["Comparison of 8 runs"])
        self.assertEqual(page.texts["h2"], ["Validation loss", "Runs", "Seeds", "Differences of groups", "Decks",
                                            "Directories"])
        charts = [element["aria-label"] for element in page.elements["svg"] if "aria-label" in element]
        self.assertEqual(charts, [f"Validation loss by {what}" for what in ("steps", "seconds", "tokens")])
        self.assertIn("<b>&c", page.texts["td"])
        for cell in ("not reached", "a_4", "3.28833"):
            self.assertIn(cell, page.texts["td"])
        classes = dict(zip(page.texts["td"], (element["class"] for element in page.elements["td"])))
        self.assertEqual([classes[cell] for cell in ("a_4", "finished", "3.28833")], ["text", "text", "figure"])
        self.assertEqual(page.addresses, [])
        self.assertNotIn("http", text)

    def test_lines_of_the_charts_pass_through_the_losses(self):
        """The x axis ends 5 % behind step 30."""
        import chart

        lines = [chart.Line([(0, 6.0), (30, 3.0)], "red", dots=True)]
        drawn = Page(chart.draw("a", lines, "steps", "loss"))
        places = [(float(dot["cx"]), float(dot["cy"])) for dot in drawn.elements["circle"]]
        width, height = chart.WIDTH - chart.LEFT - chart.RIGHT, chart.HEIGHT - chart.TOP - chart.BOTTOM
        expected = [(chart.LEFT, chart.TOP + height * 0.15 / 3.3), (chart.LEFT + width / 1.05,
                                                                    chart.TOP + height * 3.15 / 3.3)]
        for place, (x, y) in zip(places, expected):
            self.assertAlmostEqual(place[0], x, delta=0.06)
            self.assertAlmostEqual(place[1], y, delta=0.06)

    def test_words_of_a_chart_lie_within_the_picture(self):
        """And those of an axis beside each other, by the width of their characters at most."""
        import chart

        places = [(0, 1), (0, 1e7), (0, 3.388e8), (0, 1e12), (0, 1285), (0, 0.004), (0, 1e29)]
        values = [(3, 3.0000001), (1e6, 3e6), (-1e29, 1e29), (0, 5617), (1e-9, 2e-9), (3.28, 11)]
        for (first, last), (low, high) in itertools.product(places, values):
            lines = [chart.Line([(first, high), (last, low)], "red", dots=True)]
            drawn = Page(chart.draw("a", lines, "steps", "ms", target=low + 0.99 * (high - low)))
            words = []
            for element, text in zip(drawn.elements["text"], drawn.texts["text"]):
                if "transform" not in element and element["font-size"] == "12":
                    x, width = float(element["x"]), chart.CHARACTER * len(text)
                    x -= {"middle": width / 2, "end": width}.get(element.get("text-anchor"), 0)
                    words.append((round(float(element["y"])), x, x + width, text))
            below = [word for word in words if word[0] == chart.HEIGHT - chart.BOTTOM + 17]
            self.assertGreater(len(below), 1)
            for one, other in zip(below, below[1:]):
                self.assertLess(one[2], other[1], (one, other))
            for y, begin, end, text in words:
                self.assertTrue(0 < begin and end < chart.WIDTH and chart.TOP < y < chart.HEIGHT, (text, begin, end))
                if text not in ("steps", *(word[3] for word in below)) and not text.startswith("target"):
                    self.assertGreater(begin, 20, text)  # right of the name of the axis

    def test_one_run_without_losses(self):
        folder = write_run(Path("a"), LOSSES)
        (folder / "metrics.jsonl").write_text("")
        (folder / "summary.json").unlink()
        code, output, _ = self.end("compare.py", folder)
        self.assertEqual(code, 0)
        self.assertIn("not reached", output)
        self.assertIn("no figures yet", Path("compare.html").read_text())


class Damage(CompareTest):
    def test_files(self):
        folder = write_run(Path("a"), LOSSES)
        for name in ("deck.toml", "summary.json", "metrics.jsonl"):
            path = folder / name
            whole = path.read_bytes()
            for contents in (b"[[[\n", b"\xff\xff\n", b"\0\n"):
                path.write_bytes(contents)
                self.assert_refused("compare.py", folder, names=[path])
            path.unlink()
            path.mkdir()
            self.assert_refused("compare.py", folder, names=[path])
            path.rmdir()
            path.write_bytes(whole)
        self.assertEqual(self.end("compare.py", folder)[0], 0)
        for key, value in (("train_seconds", "1"), ("steps", 1.5), ("final_val_loss", [3]), ("finished", 1)):
            merits = json.loads((folder / "summary.json").read_text())
            (folder / "summary.json").write_text(json.dumps(merits | {key: value}))
            with self.assertRaisesRegex(tool.ToolError, rf"summary\.json: {key} should be"):
                runs.read_run(folder)
            (folder / "summary.json").write_text(json.dumps(merits))
        (folder / "metrics.jsonl").unlink()
        self.assert_refused("compare.py", folder, names=["a: has neither metrics.jsonl nor trace.h5", "restore one"])
        (folder / "trace.h5").write_bytes(b"\x89HDF nonsense")
        self.assert_refused("compare.py", folder, names=["a/trace.h5"])
        self.assert_refused("compare.py", "none", names=["none/deck.toml"])

    def test_what_to_do_about_a_file(self):
        """Also where other files are missing: the page of a single run, and the comparison of several."""
        folder, other = write_run(Path("a"), LOSSES), write_run(Path("b"), LOSSES)
        summary, metrics, trace = (folder / name for name in ("summary.json", "metrics.jsonl", "trace.h5"))
        whole = {path: path.read_bytes() for path in (summary, metrics)}

        def refuse(*names):
            for folders in ((folder,), (folder, other), (other, folder)):
                self.assert_refused("compare.py", *folders, names=names)

        metrics.unlink()
        for contents in (b"", whole[summary][:20], whole[summary][:-1], b"[]", b"{}", b'{"finished": 1}'):
            summary.write_bytes(contents)
            refuse("a/summary.json: ", "; move it away, and the run counts as one that has not ended; or start")
        metrics.write_bytes(whole[metrics])
        refuse("a/summary.json: ", "; move it away, ")
        for key, value in (("steps", None), ("final_val_loss", "3"), ("train_seconds", -1)):
            summary.write_text(json.dumps(json.loads(whole[summary]) | {key: value}))
            refuse(f"a/summary.json: {key} should be", "; move it away, ")
        summary.write_bytes(whole[summary])
        for key in ("gpus", "phases", "provenance", "tokens_per_second", "energy_joules"):  # read for a single run
            summary.write_text(json.dumps(json.loads(whole[summary]) | {key: "x"}))
            self.assert_refused("compare.py", folder, names=[f"a/summary.json: {key} should be", "; move it away, "])
        summary.unlink()
        self.assertEqual(self.end("compare.py", folder)[0], 0)  # as the advice has it
        lines = whole[metrics].splitlines(keepends=True)
        metrics.write_bytes(b"".join([*lines[:3], b'{"step":\n', *lines[3:]]))
        refuse("a/metrics.jsonl: line 4: not JSON", "; correct that line, or delete it")
        trace.write_bytes(b"\x89HDF nonsense")
        refuse("a/metrics.jsonl: line 4: ", "; move it away, and trace.h5 serves in its place")
        metrics.unlink()
        refuse("a/trace.h5: ", "; restore it from a copy, or leave the run out")
        trace.unlink()
        refuse("a: has neither metrics.jsonl nor trace.h5")
        (folder / "deck.toml").write_text("[[[")
        refuse("a/deck.toml: ", "; restore it from a copy")
        (folder / "deck.toml").unlink()
        refuse("a/deck.toml: No such file", "; name the output directory of a run")

    def test_arguments(self):
        folder = write_run(Path("a"), LOSSES)
        self.assert_refused("compare.py", folder, "--target", "nan", names=["--target"])
        Path("benchmark.json").write_text("{}")
        for mixed in ((folder, "benchmark.json"), ("benchmark.json", folder)):
            self.assert_refused("compare.py", *mixed, names=["a: not a file, as benchmark.json is: ", "each other"])
        for output in ("none/x.html", self.folder, "/dev/full"):
            self.assert_refused("compare.py", folder, "-o", output, names=[output])
        self.assertEqual([path for path in os.listdir() if "partial" in path], [])

    def test_without_scipy(self):
        (self.folder / "scipy.py").write_text("raise ImportError('broken')\n")
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        self.assert_refused("compare.py", *self.write_groups(), env=environment,
                            names=["no module scipy", "python3-scipy"])
        self.assertEqual(self.end("compare.py", "a_1", "b_1", env=environment)[0], 0, "no group has several runs")


if __name__ == "__main__":
    small_run.main()
