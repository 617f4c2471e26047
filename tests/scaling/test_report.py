"""Measurements and the report, from traces with known times."""

import base64
import csv
import html.parser
import json
import math
import re
import shutil
import types
from pathlib import Path

import numpy as np
from support import PHASES, ScalingTest, small_run, study_text, write_groups, write_plans, write_run

import page
from study import analysis, figures, gather, model, report
from study.study_file import read_study

STEPS, WARMUP, TOKENS = 10, 2, 4096


def times(ranks, factor=1.0, excess=0.2):
    """[STEPS, ranks, phases] of a machine whose last rank computes 20 % longer, while the others wait for it. A model
    that knows two rank counts misses the third by 44 %; without the excess by less than 25 %."""
    seconds = np.zeros((STEPS, ranks, len(PHASES)))
    part = {name: seconds[:, :, i] for i, name in enumerate(PHASES)}
    part["forward"][:], part["backward"][:] = 0.4 / ranks, 0.6 / ranks
    part["muon"][:], part["adam"][:] = 0.02 / ranks, 0.01 / ranks
    if ranks > 1:
        part["forward"][:, -1] += excess / ranks
        part["sync"][:] = 0.001
        part["sync"][:, :-1] += excess / ranks
        part["reduce_gradients"][:], part["gather_weights"][:] = 0.03, 0.02
    seconds *= factor
    seconds[:WARMUP] *= 5  # a slow start
    seconds[-1] *= 7  # a disturbed step
    return seconds


class Page(html.parser.HTMLParser):
    """Headings, pictures, tables and tags of a page; every tag must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.pictures, self.links = [], [], [], []
        self.tables = []  # rows of (class, text)
        self.pairs = []  # the tags of the members of each group side by side
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag == "img":
            self.pictures.append(dict(attributes))
        if tag == "tr":
            self.tables[-1].append([])
        elif tag == "table":
            self.tables.append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append((dict(attributes)["class"], ""))
        if self.open and self.open[-1] == "pairs":
            self.pairs[-1].append(tag)
        if ("class", "pairs") in attributes:
            self.pairs.append([])
            self.open.append("pairs")
        elif tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        opened = self.open.pop()
        assert tag == ("div" if opened == "pairs" else opened), tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        elif self.open and self.open[-1] in ("th", "td"):
            row = self.tables[-1][-1]
            row[-1] = (row[-1][0], row[-1][1] + data)


class Measurements(ScalingTest):
    def measure(self, seconds, communication=None, between=None):
        ranks = seconds.shape[1]
        study = read_study(self.write_study(steps=STEPS, warmup=WARMUP, ranks=[ranks], sequences=max(4, ranks)))
        run, = study.runs()
        write_run(run.folder, seconds, TOKENS, communication, between)
        return gather.measure(run, STEPS, WARMUP, STEPS)

    def test_a_step_is_that_of_the_slowest_rank_in_the_middle_half(self):
        m = self.measure(times(4))
        self.assertAlmostEqual(m.step, 1.2 / 4 + 0.03 / 4 + 0.051)
        self.assertAlmostEqual(m.rate, TOKENS / m.step)
        self.assertAlmostEqual(sum(m.phases.values()), m.step)

    def test_computing_communication_waiting(self):
        m = self.measure(times(4))
        self.assertAlmostEqual(m.transfer, 0.051)
        self.assertAlmostEqual(m.waiting, 0.75 * 0.2 / 4)
        self.assertAlmostEqual(m.computing, (1 + 0.05 + 0.03) / 4)
        self.assertAlmostEqual(m.path["computing"], 1.2 / 4)
        self.assertAlmostEqual(m.mean_computing, 1.05 / 4)
        self.assertAlmostEqual(m.path["muon"], 0.02 / 4)
        self.assertAlmostEqual(m.path["sync"], 0.001)

    def test_slowest_rank(self):
        m = self.measure(times(4))
        self.assertEqual((m.slowest, m.slowest_share), (3, 1.0))
        self.assertAlmostEqual(m.spread, 0.2 / (1.03 + 0.05))

    def test_overlap(self):
        """The phases of gradients and weights take 0.05 s per step, the synchronisation does not count."""
        for total, overlap in ((0.05, 0), (0.2, 0.75), (0.04, 0)):
            communication = np.full((STEPS, 4), total)
            communication[:WARMUP], communication[-1] = 100, 100  # steps that do not count
            with self.subTest(total=total):
                self.assertAlmostEqual(self.measure(times(4), communication).overlap, overlap, places=5)
                shutil.rmtree("outputs")
        self.assertTrue(math.isnan(self.measure(times(1), np.zeros((STEPS, 1))).overlap))

    def test_overlap_of_ranks_is_that_of_their_sums(self):
        communication = np.full((STEPS, 2), 0.05)
        communication[:, 1] = 0.15
        self.assertAlmostEqual(self.measure(times(2), communication).overlap, 0.5, places=5)

    def test_groups_of_ranks_say_what_ranks_say(self):
        """Of 8 ranks, the last of which is slower, in groups of 4."""
        draw = np.random.default_rng(0)
        seconds = times(8) * draw.uniform(0.99, 1, (STEPS, 8, 1))
        communication, between = draw.uniform(0.1, 0.2, (2, STEPS, 8)) * [[[2]], [[0.5]]]
        each = self.measure(seconds, communication, between)
        write_groups(each.run.folder / "trace.h5", seconds, TOKENS, communication, between, 4)
        groups = gather.measure(each.run, STEPS, WARMUP, STEPS)
        for name in ("step", "tokens", "work_mean", "overlap", "between", "transfer", "waiting", "computing"):
            self.assertAlmostEqual(getattr(groups, name), getattr(each, name), places=6, msg=name)
        self.assertEqual((groups.slowest, groups.slowest_share), (each.slowest, each.slowest_share))
        self.assertAlmostEqual(groups.spread, each.spread, delta=0.02)  # extremes of each step, not of the means
        for name in PHASES[:9]:
            self.assertAlmostEqual(groups.phases[name], each.phases[name], places=6)
        for name, value in each.path.items():
            self.assertAlmostEqual(groups.path[name], value, places=6, msg=name)
        self.assertEqual(groups.work.shape, (2 * 5,))

    def test_communication_between_nodes(self):
        """A quarter of the 0.05 s per step in which computing waits for gradients and weights."""
        communication, between = np.full((STEPS, 4), 0.2), np.full((STEPS, 4), 0.05)
        between[:WARMUP], between[-1] = 0.2, 0  # steps that do not count
        m = self.measure(times(4), communication, between)
        self.assertAlmostEqual(m.between, 0.25)
        self.assertAlmostEqual(m.transfer_between, 0.25 * 0.05)
        header, row = gather.table([m])
        self.assertEqual(row[header.index("between")], "0.25")
        shutil.rmtree("outputs")
        earlier = self.measure(times(4), communication)
        self.assertEqual((earlier.between, earlier.transfer_between), (0, 0))
        self.assertEqual(self.measure(times(1), np.zeros((STEPS, 1))).transfer_between, 0)

    def test_the_split_shows_communication_between_nodes(self):
        import matplotlib.pyplot as plt

        for between, shown in ((None, False), (np.full((STEPS, 4), 0.05), True)):
            m = self.measure(times(4), np.full((STEPS, 4), 0.2), between)
            figure, axes = plt.subplots()
            figures.draw_split(axes, types.SimpleNamespace(points=[m], oversubscribed=lambda ranks: False))
            names = axes.get_legend_handles_labels()[1]
            self.assertEqual("between nodes" in names, shown)
            top = max(bar.get_y() + bar.get_height() for bar in axes.patches)
            self.assertAlmostEqual(top, 1)
            plt.close(figure)
            shutil.rmtree("outputs")


class Report(ScalingTest):
    def study(self, leave_out=(), excess=0.2, words=(), summary={}, **values):
        study = read_study(self.write_study(**{"steps": STEPS, "warmup": WARMUP, "ranks": (1, 2, 4), "sequences": 4,
                                               "repeats": 3, **values}))
        for run in study.runs():
            if run.name not in leave_out:
                write_run(run.folder, times(run.ranks, (1.0, 1.5, 0.9)[run.repeat - 1], excess), TOKENS, **summary)
        study.folder.mkdir(parents=True, exist_ok=True)
        write_plans(study, *words)
        return study

    def analyse(self, study):
        return analysis.analyse(study, *gather.gather(study))

    def test_sections_and_pictures(self):
        _, page, picture, *_ = report.write(self.analyse(self.study(excess=0)))
        text = page.read_text()
        found = Page(text)
        self.assertEqual(found.headings, ["Scaling study test", "Runs", "Throughput and efficiency",
                                          "Where the time goes", "Ranks", "Model", "Messages and memory", "Prediction", "All runs",
                                          "Setup"])
        self.assertEqual(len(found.pictures), 9)
        self.assertTrue(all(p["alt"] for p in found.pictures))
        self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))
        self.assertIn("All runs of the study have finished.", text)
        self.check_references(text, found.links)

    def test_figures_and_text_are_aligned_apart(self):
        """Columns whose cells are all figures have the class of figures, the others that of text."""
        tables = Page(report.page(self.analyse(self.study(excess=0)))).tables
        self.assertEqual(len(tables), 8)
        for rows in tables:
            for (kind, name), *cells in zip(*rows, strict=True):
                figures = all(re.fullmatch(r"[-+]?[\d,.]+(%| s| ms| µs| [kMGT]?B)?|—", text) for _, text in cells)
                with self.subTest(column=name):
                    self.assertEqual({kind, *(c for c, _ in cells)}, {"figure" if figures else "text"})
        self.assertRegex(page.STYLE, r"\.figure \{[^}]*text-align: right; font-variant-numeric: tabular-nums;")
        self.assertRegex(page.STYLE, r"\.text \{[^}]*text-align: left;")

    def test_nothing_stands_beside_empty_space(self):
        groups = Page(report.page(self.analyse(self.study(excess=0)))).pairs
        self.assertEqual(groups, [["figure", "figure", "figure", "div"], ["figure", "figure"], ["figure", "div"],
                                  ["figure", "div"], ["figure", "figure"]])

    def test_tables_of_the_page(self):
        result = self.analyse(self.study())
        points, runs = (Page(make(result)).tables[0] for make in (report.points_table, report.runs_table))
        rate = TOKENS / (1.23 / 4 + 0.051)
        gain = rate / (TOKENS / 1.03)
        self.assertEqual([text for _, text in points[3]],
                         ["measured", "4", "1", "359 ms", f"{rate:,.0f}", f"{gain:.2f}", f"{gain / 4:.1%}"])
        self.assertEqual([row[:2] for row in runs[1:]],
                         [[("figure", str(n)), ("figure", str(k))] for n in (1, 2, 4) for k in (1, 2, 3)])
        self.assertEqual(dict(zip((text for _, text in runs[0]), (text for _, text in runs[7])))["waiting"], "37.5 ms")

    def check_references(self, text, links):
        """The page and the pictures in it refer to nothing outside."""
        self.assertTrue(all(link.startswith("data:image/svg+xml;base64,") for link in links))
        self.assertNotRegex(text, r"https?:|//[a-z]|@import|url\(")
        for link in links:
            svg = base64.b64decode(link.split(",")[1]).decode()
            self.assertLessEqual({target[0] for target in re.findall(r'href="([^"]*)"', svg)}, {"#"})
            self.assertLessEqual(set(re.findall(r"url\((.)", svg)), {"#"})

    def test_the_median_repeat_stands_for_its_rank_count(self):
        result = self.analyse(self.study())
        self.assertEqual([m.run.repeat for m in result.points], [1, 1, 1])
        self.assertAlmostEqual(gather.speed_up(result.points[1], result.base), 1.03 / (1.23 / 2 + 0.051))

    def test_table(self):
        gather.write_csv("runs.csv", gather.table(self.analyse(self.study()).measurements))
        with open("runs.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(r["ranks"], r["repeat"]) for r in rows],
                         [(str(n), str(k)) for n in (1, 2, 4) for k in (1, 2, 3)])
        four = rows[6]
        step = 1.23 / 4 + 0.051
        self.assertAlmostEqual(float(four["step_seconds"]), step, places=5)
        self.assertAlmostEqual(float(four["tokens_per_second"]), TOKENS / step, delta=0.1)
        self.assertAlmostEqual(float(four["efficiency"]), 1.03 / step / 4, places=5)
        self.assertAlmostEqual(float(four["backward_seconds"]), 0.15, places=5)
        self.assertEqual(four["slowest_rank"], "3")

    def test_missing_runs_are_named(self):
        study = self.study(leave_out=("ranks2_repeat1", "ranks4_repeat3"))
        study.run(2, 1).log.write_text("nanorun: no data\n")
        Path(study.run(1, 2).folder / "trace.h5").write_text("no HDF5")
        result = self.analyse(study)
        self.assertEqual({run.name: why.split(":")[0] for run, why in result.missing}, {
            "ranks2_repeat1": "not finished", "ranks4_repeat3": "not started", "ranks1_repeat2": "unreadable"})
        text = report.missing_section(result)
        self.assertIn("3 of 9 runs are missing", text)
        self.assertIn("outputs/test/ranks2_repeat1.log", text)

    def test_oversubscribed_rank_counts_are_marked(self):
        result = self.analyse(self.study(more="[launch]\ncores = 2"))
        self.assertEqual([result.oversubscribed(m.ranks) for m in result.points], [False, False, True])
        self.assertIn("* more ranks than the 2 cores", report.heading(result))

    def test_prediction_says_where_scaling_stops(self):
        more = "[prediction]\nranks_per_node = 2\nlatency = 1e-2\nbandwidth = 1e9\nmax_ranks = 64\nsequences = 64"
        result = self.analyse(self.study(excess=0, more=more))
        text = " ".join(report.findings(result))
        i = result.forecast.first_below(0.5)
        self.assertIn(f"Efficiency falls below 50% from {result.forecast.ranks[i]} ranks on", text)
        self.assertIn(f"The largest loss is {result.forecast.losses(i)[0][0]}", text)
        self.assertIn("On 16 ranks 8 own no matrix of some shape", text)
        self.assertEqual(result.forecast.ranks[-1], 64)

    def test_nodes_that_were_emulated_are_said(self):
        """Measured, emulated and predicted are three words and three colours."""
        result = self.analyse(self.study(excess=0, repeats=1, words=("comm.ranks_per_node=2",),
                                         summary={"provenance": {"hosts": {"one": 4}}}))
        self.assertEqual([result.kind(m) for m in result.points], ["measured", "measured", "emulated"])
        self.assertIn("nodes emulated on fewer machines", report.heading(result))
        kinds = [row[0][1] for row in Page(report.traffic_table(result)).tables[0][1:]]
        self.assertEqual(kinds, ["measured", "measured", "emulated", "predicted", "predicted", "predicted"])
        self.assertEqual(len(set(figures.KINDS.values())), 3)
        figure, axes = figures.plt.subplots()
        figures.draw_model(axes, result)
        colours = {line.get_label(): line.get_markeredgecolor() for line in axes.get_lines()}
        figures.plt.close(figure)
        self.assertEqual({name: colours[name] for name in ("measured", "emulated")},
                         {name: figures.KINDS[name] for name in ("measured", "emulated")})
        self.assertEqual(colours["predicted from other points"], figures.KINDS["predicted"])

    def test_nodes_that_the_plan_does_not_know(self):
        one = {"provenance": {"hosts": {"one": 4}}}
        self.assert_no_prediction(self.analyse(self.study(excess=0, repeats=1, summary=one,
                                                          more="[launch]\nranks_per_node = 2")),
                                  "The ranks of ranks4_repeat1 lay on 1 machine, their plan has 2 nodes: "
                                  "launch.ranks_per_node should say how many ranks a node has[.]")

    def test_a_network_that_nobody_has_measured(self):
        more = "[prediction]\nranks_per_node = 2\nlatency = 1e-6\n"
        self.assert_no_prediction(self.analyse(self.study(excess=0, repeats=1, more=more)),
                                  "The study has measured single nodes; prediction.latency and prediction.bandwidth ")
        shutil.rmtree("outputs")
        result = self.analyse(self.study(excess=0, repeats=1, more=f"{more}bandwidth = 1e9"))
        self.assertEqual(result.no_forecast, "")
        self.assertIn("2 to a node; between nodes 1 µs per message and 1 GB/s per rank", report.network(result))

    def test_rank_counts_that_do_not_fit_are_said(self):
        study = self.study(excess=0, repeats=1)
        path = study.folder / "plans.json"
        plans = json.loads(path.read_text())
        for table in plans["predicted"][:2]:
            table["refusal"] = "nanorun: a rank needs 2 GiB of memory and has 1 GiB"
        path.write_text(json.dumps(plans))
        result = self.analyse(study)
        self.assertEqual(result.forecast.ranks, [4])
        text = report.page(result)
        for ranks in ("1 rank", "2 ranks"):
            self.assertIn(f"<li>{ranks}: a rank needs 2 GiB of memory and has 1 GiB</li>", text)
        plans["predicted"][2]["refusal"] = "nanorun: no"
        path.write_text(json.dumps(plans))
        self.assert_no_prediction(self.analyse(study), "No rank count of the prediction fits into memory[.]")

    def test_slow_gpus_are_named(self):
        study = self.study(repeats=1, leave_out=("ranks1_repeat1", "ranks2_repeat1", "ranks4_repeat1"))
        for run in study.runs():
            gpus = [{"min_clock_mhz": 1900, "avg_clock_mhz": 1950, "avg_power_watts": 600, "max_power_watts": 690,
                     "throttled": {"sw_power_cap": 5}} for _ in range(run.ranks)]
            gpus[-1] |= {"min_clock_mhz": 1200, "avg_clock_mhz": 1300.5, "throttled": {"hw_thermal_slowdown": 10}}
            write_run(run.folder, times(run.ranks), TOKENS, gpus=gpus, gpu_looks=10)
        found, = [table for table in Page(report.page(self.analyse(study))).tables if table[0][1][1].endswith("SM clock")]
        self.assertEqual([[text for _, text in row] for row in found[1:]], [
            ["1", "1,300 MHz", "0", "1,300 MHz", "1,200 MHz", "690 W", "hw_thermal_slowdown on rank 0 (100% of the looks)"],
            ["2", "1,300 MHz", "1", "1,950 MHz", "1,200 MHz", "690 W",
             "hw_thermal_slowdown on rank 1 (100% of the looks); sw_power_cap on rank 0 (50% of the looks)"],
            ["4", "1,300 MHz", "3", "1,950 MHz", "1,200 MHz", "690 W",
             "hw_thermal_slowdown on rank 3 (100% of the looks); sw_power_cap on ranks 0 (50% of the looks), "
             "1 (50% of the looks), 2 (50% of the looks)"]])

    def test_gpus_that_are_none(self):
        """Of a file that something else has written."""
        study = self.study(repeats=1, leave_out=("ranks4_repeat1",))
        run = study.runs()[-1]
        for gpus in ("four", [4], [{}], [{"min_clock_mhz": "x"}]):
            write_run(run.folder, times(run.ranks), TOKENS, gpus=gpus, gpu_looks=10)
            _, missing = gather.gather(study)
            self.assertEqual(len(missing), 1)
            self.assertIn("summary.json", missing[0][1])
            shutil.rmtree(run.folder)

    def setup_of(self, study):
        """The table of Setup, and the notes of the page."""
        page = report.page(self.analyse(study))
        rows = {name: value for (_, name), (_, value) in Page(page).tables[-1]}
        return rows, re.findall(r'<div class="note">((?!No prediction).*?)</div>', page)

    def test_setup_says_where_the_runs_come_from(self):
        study = self.study(repeats=1, leave_out=("ranks1_repeat1", "ranks2_repeat1", "ranks4_repeat1"))
        facts = {"version": "0.2.0", "commit": "abc", "mpi": "Open MPI v4", "hosts": {"a": 1, "b": 1},
                 "command": "nanorun", "started": "2026-11-22T10:00:00+00:00"}
        for run in study.runs():
            write_run(run.folder, times(run.ranks), TOKENS, provenance=facts)
        rows, notes = self.setup_of(study)
        self.assertEqual({name: rows.get(name) for name in ("version", "commit", "mpi", "hosts", "hdf5", "started")},
                         {"version": "0.2.0", "commit": "abc", "mpi": "Open MPI v4", "hosts": "a, b", "hdf5": None,
                          "started": None})
        self.assertEqual(notes, [])

    def test_mixed_builds_are_said(self):
        study = self.study(repeats=1, leave_out=("ranks1_repeat1", "ranks2_repeat1", "ranks4_repeat1"))
        for run, commit in zip(study.runs(), ("abc", "abc", "<dirty>")):
            write_run(run.folder, times(run.ranks), TOKENS,
                      provenance={"version": "0.2.0", "commit": commit, "hosts": {f"node{run.ranks}": run.ranks}})
        rows, notes = self.setup_of(study)
        self.assertEqual(notes, ["Runs of different builds are mixed: they differ in commit."])
        self.assertEqual(rows["commit"], "abc (2 runs); <dirty> (1 run)")
        shutil.rmtree(study.run(1, 1).folder)
        write_run(study.run(1, 1).folder, times(1), TOKENS)  # as an earlier program wrote it
        rows, notes = self.setup_of(study)
        self.assertEqual(notes, ["Runs of different builds are mixed: they differ in version, commit."])
        self.assertIn("not recorded (1 run)", rows["version"])

    def test_runs_of_earlier_programs_have_no_provenance(self):
        rows, notes = self.setup_of(self.study())
        self.assertNotIn("version", rows)
        self.assertEqual(notes, [])

    def assert_no_prediction(self, result, reason):
        self.assertIsNone(result.forecast)
        self.assertRegex(result.no_forecast, reason)
        _, page, picture, *_ = report.write(result)
        found = Page(page.read_text())
        self.assertEqual(len(found.pictures), 7)
        self.assertEqual([text for text in found.headings if text == "Prediction"], ["Prediction"])
        self.assertRegex(page.read_text(), f'<div class="note">No prediction: {reason}')
        self.assertNotIn("4,096", page.read_text())
        self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))

    def test_too_few_rank_counts_predict_nothing(self):
        result = self.analyse(self.study(ranks=[2], kind="weak", repeats=1))
        self.assertEqual(result.errors, [])
        self.assert_no_prediction(result, "The study has 1 rank count to fit the model to; a prediction needs 3[.]")
        shutil.rmtree("outputs")
        self.assert_no_prediction(self.analyse(self.study(ranks=[1, 4], excess=0, repeats=1)),
                                  "The study has 2 rank counts to fit the model to; a prediction needs 3[.]")

    def test_a_model_that_misses_predicts_nothing(self):
        result = self.analyse(self.study())
        self.assertGreater(result.largest_error, 0.25)
        self.assert_no_prediction(result, "The model misses the step on 4 ranks by 44%, when it knows other rank "
                                          "counts alone; a prediction needs 25% or less[.]")

    def test_larger_rank_counts_test_the_prediction(self):
        """The model does not know them, so their errors are those of a prediction."""
        more = "[prediction]\nfitted_ranks = 4\n"
        result = self.analyse(self.study(ranks=(1, 2, 4, 8), sequences=8, excess=0, repeats=1, more=more))
        self.assertEqual(len(result.errors), 4)
        known = model.fit([analysis.model_point(result.study, m, result.plans[m.ranks]) for m in result.points[:3]])
        self.assertEqual(result.model, known)
        self.assertAlmostEqual(result.errors[3], result.fitted_step(result.points[3]) / result.points[3].step - 1)
        shutil.rmtree("outputs")
        self.assert_no_prediction(self.analyse(self.study(excess=0, repeats=1, more=more.replace("4", "2"))),
                                  "The study has 2 rank counts to fit the model to; a prediction needs 3[.]")

    def test_a_model_that_fits_predicts(self):
        result = self.analyse(self.study(excess=0))
        self.assertLess(result.largest_error, 0.25)
        self.assertEqual((result.no_forecast, result.forecast.ranks), ("", [1, 2, 4]))
        self.assertNotIn("No prediction", report.page(result))


class Pictures(ScalingTest):
    """Words lie within their axes or beside them, and not over each other."""

    def analyse(self, machine="a test", factor=1.0, **values):
        text = study_text(**{"steps": STEPS, "warmup": WARMUP, **values}).replace('"a test"', f'"{machine}"')
        Path("study.toml").write_text(text)
        study = read_study("study.toml")
        for run in study.runs():
            seconds = factor * times(run.ranks, 1.0, 0.1 if run.ranks > 4 else 0)
            write_run(run.folder, seconds * (run.ranks if study.kind == "weak" else 1), TOKENS,
                      np.full((STEPS, run.ranks), 0.12) if run.ranks > 1 else None)
        write_plans(study)
        return analysis.analyse(study, *gather.gather(study))

    def boxes(self, texts, renderer):
        return [text.get_window_extent(renderer) for text in texts if text.get_text() and text.get_visible()]

    def check(self, result):
        for name, draw in figures.PANELS.items():
            with figures.plt.rc_context(figures.STYLE):
                figure, axes = figures.plt.subplots(figsize=(6.2, 3.7), layout="constrained")
                draw(axes, result)
                figure.canvas.draw()
                renderer = figure.canvas.get_renderer()
                frame, whole = axes.get_window_extent(renderer), figure.bbox
                for box in self.boxes(axes.texts, renderer):
                    with self.subTest(panel=name, ranks=len(result.points)):
                        self.assertTrue(frame.x0 <= box.x0 and box.x1 <= frame.x1, (frame, box))
                        self.assertTrue(frame.y0 <= box.y0 and box.y1 <= frame.y1, (frame, box))
                for axis in (axes.xaxis, axes.yaxis):
                    marks = self.boxes([tick.label1 for tick in axis.get_major_ticks()], renderer)
                    for one, other in zip(marks, marks[1:]):
                        self.assertFalse(one.overlaps(other), (name, axis.axis_name))
                legend = [axes.get_legend().get_window_extent(renderer)] if axes.get_legend() else []
                for box in self.boxes([axes.title, axes.xaxis.label, axes.yaxis.label], renderer) + legend:
                    self.assertTrue(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0
                                    and box.y1 <= whole.y1, (name, box))
                figures.plt.close(figure)

    def test_few_rank_counts(self):
        for name, more in (("late", "latency = 1e-4\nbandwidth = 1e6\nmax_ranks = 4096\nsequences = 4096"),
                           ("soon", "latency = 1e-4\nbandwidth = 1e5\nmax_ranks = 4096\nsequences = 4096"),
                           ("at_once", "latency = 10\nbandwidth = 1e5\nmax_ranks = 4096\nsequences = 4096"),
                           ("never", "latency = 1e-9\nbandwidth = 1e14\nmax_ranks = 4")):
            result = self.analyse(name=name, ranks=(1, 2, 4), more=f"[prediction]\n{more}")
            self.assertEqual(result.forecast.first_below(0.5) is None, name == "never")
            self.check(result)
        self.check(self.analyse(name="one", ranks=(2,), kind="weak"))

    def test_many_rank_counts(self):
        self.check(self.analyse(name="all", ranks=range(1, 13), kind="weak", more="[launch]\ncores = 8"))
        self.check(self.analyse(name="powers", ranks=[2**i for i in range(10)], sequences=512, factor=300.0))

    def test_long_names(self):
        result = self.analyse(machine="a machine of a centre with a name that is long " * 6)
        lines = figures.wrapped(report.heading(result), 150).splitlines()
        self.assertGreater(len(lines), 1)
        self.assertLessEqual(max(map(len, lines)), 150)


if __name__ == "__main__":
    small_run.main()
