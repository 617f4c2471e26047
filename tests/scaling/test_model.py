"""The model of the step time: what it takes from plans and runs, the fit, and the forecast."""

import json
import math
import types
from dataclasses import replace

import numpy as np
from support import ROOT, ScalingTest, plan_for, planned, small_run

from study import StudyError, analysis, model, plan, program, study_file
from study.model import Forecast, Link, Model, Point
from study.plan import Plan, Traffic

TRUE = Model(per_sequence=0.05, constant=0.004, muon=2e-11, adam=3e-9, spread=0.04, inside=Link(5e-6, 1 / 2e9),
             between=Link(8e-6, 1 / 3e9), all_reduce=4e-6, overlap=0.0)


def nodes_of(size, counts):
    """Plans on nodes of `size` ranks; 0: on one node."""
    return [plan_for(n, *(("--ranks-per-node", str(size)) if size else ())) for n in counts]


def point(truth, planned_step, sequences, noise=None, sharing=1.0, told=False):
    """A measurement of a machine that behaves as `truth`; noise(): factor on each time; `told`: whether the trace tells
    transfers between nodes."""
    noise = noise or (lambda: 1.0)
    work, fixed, muon, adam, inside, between, reduce = (
        seconds * noise() for name, seconds in truth.parts(planned_step, sequences, sharing).items()
        if name != "slower ranks")
    longer = 1 + truth.spread * model.slowest(planned_step.ranks)
    path = {"computing": longer * work + fixed, "muon": longer * muon, "adam": longer * adam,
            "reduce_gradients": 0.6 * (inside + between), "gather_weights": 0.4 * (inside + between), "sync": reduce}
    overlap = truth.overlap if planned_step.ranks > 1 else math.nan
    share = between / (inside + between) if told and planned_step.ranks > 1 else math.nan
    return Point(planned_step, sequences, sum(path.values()), path, work + fixed, sharing, overlap, share)


def points(truth, size=4, counts=(1, 2, 4, 8, 16, 32), sequences=16, **options):
    return [point(truth, p, sequences / p.ranks, **options) for p in nodes_of(size, counts)]


class Plans(ScalingTest):
    """What the study takes from the program's plans; the program's own tests check the figures."""

    def test_counts_are_those_of_the_program(self):
        table = planned("--ranks", "16", "train.sequences=16", "--ranks-per-node", "4")
        found = plan_for(16, "--ranks-per-node", "4")
        self.assertEqual((found.ranks, found.nodes, found.ranks_per_node, found.emulated), (16, 4, 4, False))
        self.assertEqual((found.muon, found.adam), (table["work"]["muon"], table["work"]["adam"]))
        for level in ("inside", "between"):
            self.assertEqual(getattr(found, level), Traffic(**table["sent"][level]))
        self.assertEqual(found.memory, table["memory_bytes"]["total"])
        self.assertEqual(found.idle, 8)  # of 8 matrices of the MLP; there are 16 square ones

    def test_work_shrinks_to_one_matrix_of_each_shape(self):
        one, few, many = (plan_for(n) for n in (1, 8, 16))
        self.assertGreater(one.muon, few.muon)
        self.assertGreater(few.muon, many.muon)
        self.assertEqual(many.muon, plan_for(64).muon)
        self.assertEqual([p.idle for p in (one, few, many)], [0, 0, 8])

    def test_messages_inside_a_node(self):
        """As docs/scaling.md has them: S + (R - 2) h, whatever the number of nodes."""
        for size in (3, 4, 8):
            for nodes in (1, 2, 4):
                table = planned("--ranks", str(size * nodes), f"train.sequences={size * nodes}", "--ranks-per-node",
                                str(size))
                units = [bucket["units"] for bucket in table["buckets"] if bucket["travels"]]
                pieces = sum(min(count, size) for count in units)
                shares = (table["sent"]["inside"]["messages"] - pieces) / (size - 2)
                with self.subTest(size=size, nodes=nodes):
                    self.assertEqual(shares, int(shares))
                    self.assertGreaterEqual(shares, pieces / size)
                    self.assertLessEqual(shares, len(units))
                    rounds = (nodes - 1).bit_length()
                    self.assertLessEqual(table["sent"]["between"]["messages"], 3 * len(units) * rounds)

    def test_nodes_that_the_deck_emulates(self):
        self.assertTrue(plan_for(8, "comm.ranks_per_node=2").emulated)
        self.assertEqual(plan_for(8, "comm.ranks_per_node=2").nodes, 4)

    def test_rank_counts_of_a_prediction(self):
        def counts(kind, sequences, most):
            study = self.read_study(kind=kind, sequences=sequences, ranks=(1,), more=f"[prediction]\nmax_ranks = {most}")
            return plan.predicted_ranks(study)

        self.assertEqual(counts("weak", 3, 100), [1, 2, 4, 8, 16, 32, 64, 100])
        self.assertEqual(counts("strong", 12, 4096), [1, 2, 4, 12])
        self.assertEqual(counts("strong", 64, 16), [1, 2, 4, 8, 16])
        self.assertEqual(counts("weak", 1, 4096)[-2:], [2048, 4096])

    def test_more_ranks_than_sequences_have_shorter_ones(self):
        """As in the measured runs: a rank count is predicted and measured by the same plan."""
        study = {"kind": "strong", "sequences": 2, "ranks": (1, 8), "more": "length = 1024\n[prediction]\nmax_ranks = 64"}
        measured, predicted = self.write(**study)
        self.assertEqual([p.ranks for p in predicted], [1, 2, 4, 8, 16])  # of 128 tokens each at last
        for n, found in measured.items():
            self.assertEqual(next(p for p in predicted if p.ranks == n), found)
        self.assertEqual(json.loads((self.read_study(**study).folder / plan.PLANS).read_text())["of"]["length"], 1024)

    def test_the_strong_study_for_large_machines(self):
        """All measured and predicted steps have the same tokens."""
        study = study_file.read_study(ROOT / "inputs/scaling/strong_124m.toml")
        self.assertEqual(list(study.ranks), plan.predicted_ranks(study))
        self.assertEqual((study.ranks[-1], study.prediction.sequences), (4096, 0))
        for n in study.ranks:
            deck = dict(word.split("=", 1) for word in study.run(n, 1).arguments if "=" in word)
            self.assertEqual(int(deck["train.sequences"]) * int(deck["train.length"]), 1572864, n)

    def write(self, **values):
        study = self.read_study(**values)
        study.folder.mkdir(parents=True, exist_ok=True)
        plan.write_plans(study, small_run.PROGRAM)
        return plan.read_plans(study.folder)

    def test_a_launch_asks_the_program(self):
        """Runs lie evenly on as few nodes as hold them; the predicted ones fill theirs."""
        measured, predicted = self.write(kind="weak", sequences=1, ranks=(1, 6), more="[launch]\nranks_per_node = 4\n"
                                         "[prediction]\nmax_ranks = 8\n")
        self.assertEqual({n: (p.nodes, p.ranks_per_node) for n, p in measured.items()}, {1: (1, 1), 6: (2, 3)})
        self.assertEqual([(p.ranks, p.nodes, p.ranks_per_node) for p in predicted],
                         [(1, 1, 1), (2, 1, 2), (4, 1, 4), (8, 2, 4)])

    def test_nodes_of_the_deck_and_of_the_prediction(self):
        measured, predicted = self.write(
            kind="weak", sequences=1, ranks=(4,), more='overrides = ["comm.ranks_per_node=2"]\n'
            '[launch]\nranks_per_node = 4\n[prediction]\nmax_ranks = 8\nranks_per_node = 8\n')
        self.assertEqual((measured[4].nodes, measured[4].emulated), (2, True))
        self.assertEqual((predicted[-1].nodes, predicted[-1].emulated), (1, False))

    def test_rank_counts_without_memory(self):
        """They are said, not predicted."""
        _, predicted = self.write(ranks=(1,), more='[prediction]\nmemory = "1MiB"')
        for found in predicted:
            self.assertIn("of memory and has 1 MiB; ", found.refusal)
            self.assertGreater(found.memory, 1 << 20)
        with self.assertRaisesRegex(StudyError, "--memory"):
            self.write(ranks=(1,), more='[prediction]\nmemory = "much"')

    def test_predicted_runs_have_shards_of_their_own(self):
        """They may take steps that the shards here do not hold; measured ones may not."""
        small_run.write_data(self.folder)
        shards = f"overrides = ['data.train=[\"{self.folder}/data.h5\"]']\n"
        _, predicted = self.write(kind="weak", sequences=1, ranks=(1,), more=shards + "[prediction]\nmax_ranks = 65536\n")
        self.assertEqual((predicted[-1].ranks, [p.refusal for p in predicted]), (65536, [""] * 17))
        with self.assertRaisesRegex(StudyError, "no shard holds the"):
            self.write(kind="weak", sequences=65536, ranks=(1,), more=shards)

    def test_decks_that_the_program_refuses(self):
        with self.assertRaisesRegex(StudyError, "widht"):
            self.write(more='overrides = ["model.widht=64"]')
        shown, refusal = program.dry_run(small_run.PROGRAM, self.read_study().run(1, 1), "--memory", "1MiB")
        self.assertIn("memory per rank", shown)
        self.assertIn("of memory and has 1 MiB", refusal)

    def test_decks_of_records(self):
        """The rules of all decks are known, and each rank has work."""
        decks = sorted((ROOT / "inputs").glob("*.toml"))
        self.assertGreaterEqual(len(decks), 5)
        for deck in decks:
            with self.subTest(deck=deck.name):
                study = replace(self.read_study(kind="weak", sequences=8, steps=2000, ranks=(8,)), deck=deck)
                found = plan.plan_of(plan.Planner(small_run.PROGRAM).accepted(study, 8), deck)
                self.assertGreater(min(found.muon, found.adam, found.inside.bytes, found.memory), 0)


class LeastSquares(ScalingTest):
    def test_solutions_are_optimal(self):
        """Karush-Kuhn-Tucker: no gradient where positive, none that would help where zero."""
        draw = np.random.default_rng(3)
        zeros = 0
        for _ in range(200):
            a, b = draw.normal(size=(6, 3)), draw.normal(size=6)
            x = model.non_negative_least_squares(a, b)
            gradient = a.T @ (a @ x - b)
            self.assertTrue(np.all(x >= 0))
            self.assertTrue(np.allclose(gradient[x > 0], 0, atol=1e-10))
            self.assertTrue(np.all(gradient[x == 0] > -1e-10))
            zeros += np.sum(x == 0)
        self.assertGreater(zeros, 100)

    def test_columns_that_cannot_be_told_apart(self):
        x = model.non_negative_least_squares([[2, 1], [2, 1]], [4, 4])
        self.assertTrue(np.allclose(x, [2, 0]))
        self.assertTrue(np.allclose(model.non_negative_least_squares([[0.0], [0.0]], [1, 2]), [0]))

    def test_scales_of_bytes_and_seconds(self):
        a = np.array([[1e9, 3], [3e9, 7], [2e9, 40]])
        x = model.non_negative_least_squares(a, a @ [1e-10, 2e-6])
        self.assertTrue(np.allclose(x, [1e-10, 2e-6], rtol=1e-6, atol=0))


class Points(ScalingTest):
    def test_what_a_run_tells_the_model(self):
        run = types.SimpleNamespace(sequences=8)
        m = types.SimpleNamespace(run=run, ranks=4, step=0.3, path={"computing": 0.2}, mean_computing=0.15, overlap=0.5,
                                  between=0.25)
        planned_step = plan_for(4)
        study = self.read_study(ranks=(1, 4), sequences=8, more="[launch]\ncores = 2")
        self.assertEqual(analysis.model_point(study, m, planned_step),
                         Point(planned_step, sequences=2, step=0.3, path={"computing": 0.2}, mean_computing=0.15,
                               sharing=2, overlap=0.5, between=0.25))


class Fit(ScalingTest):
    def assert_recovered(self, fitted, truth, tolerance):
        pairs = [(getattr(fitted, name), getattr(truth, name))
                 for name in ("per_sequence", "constant", "muon", "adam", "spread", "all_reduce")]
        for name in ("inside", "between"):
            a, b = getattr(fitted, name), getattr(truth, name)
            pairs += [(a.latency, b.latency), (a.seconds_per_byte, b.seconds_per_byte)]
        for found, true in pairs:
            self.assertLessEqual(abs(found - true), tolerance * true, (fitted, truth))

    def test_exact_times_give_the_parameters(self):
        fitted = model.fit(points(TRUE))
        self.assert_recovered(fitted, TRUE, 1e-6)
        self.assertEqual(fitted.overlap, 0)

    def test_shared_cores_give_the_parameters(self):
        shared = [point(TRUE, p, 16 / p.ranks, sharing=max(1, p.ranks / 4)) for p in nodes_of(4, (1, 2, 4, 8, 16, 32))]
        self.assert_recovered(model.fit(shared), TRUE, 1e-6)

    def test_levels_that_the_traces_tell_apart(self):
        """Each is fitted to its own time, so that fewer points give the parameters."""
        few = points(TRUE, counts=(1, 2, 4, 8, 16), told=True)
        self.assert_recovered(model.fit(few), TRUE, 1e-6)

    def test_traces_of_earlier_programs_tell_no_levels(self):
        """They say that nothing went between nodes."""
        earlier = [replace(p, between=0.0) for p in points(TRUE)]
        self.assertEqual(model.fit(earlier), model.fit(points(TRUE)))

    def test_noisy_times_give_larger_machines(self):
        """Times that scatter by 1 % on up to eight ranks, nodes of four: 16 and 32 come out within 5 %."""
        for seed in range(5):
            draw = np.random.default_rng(seed)
            noisy = points(TRUE, counts=(1, 2, 4, 8), noise=lambda: draw.normal(1, 0.01))
            fitted = model.fit(noisy)
            for name in ("per_sequence", "muon", "adam", "all_reduce"):
                self.assertLess(abs(getattr(fitted, name) / getattr(TRUE, name) - 1), 0.1)
            for larger in nodes_of(4, (16, 32)):
                self.assertLess(abs(fitted.step(larger, 1) / TRUE.step(larger, 1) - 1), 0.05)

    def test_waiting_for_slower_ranks(self):
        """Ranks whose times scatter by 20 %, which runs on up to 8 ranks show: 16 and 32 come out, in strong and in weak
        scaling. Without the term they would miss by 25 % and more."""
        uneven = replace(TRUE, spread=0.2)
        for local in (lambda n: 64 / n, lambda n: 4):
            def points_of(counts):
                return [point(uneven, p, local(p.ranks), told=True) for p in nodes_of(4, counts)]

            fitted = model.fit(points_of((1, 2, 4, 8)))
            self.assertAlmostEqual(fitted.spread, 0.2, delta=0.005)
            for larger in points_of((16, 32)):
                step = fitted.step(larger.plan, larger.sequences)
                self.assertLess(abs(step / larger.step - 1), 0.02)
                self.assertLess(replace(fitted, spread=0.0).step(larger.plan, larger.sequences) / larger.step, 0.8)

    def test_the_slowest_of_random_ranks(self):
        """Ranks whose times are drawn: the standard deviation of one is that of the fit."""
        draw = np.random.default_rng(1)
        drawn = []
        for p in nodes_of(4, (1, 2, 4, 8, 16, 32)):
            times = 0.05 * 2 * draw.normal(1, 0.1, (500, p.ranks))
            path = dict.fromkeys(("muon", "adam", "reduce_gradients", "gather_weights", "sync"), 0.0)
            drawn.append(Point(p, 2, 1.0, path | {"computing": times.max(axis=1).mean()}, times.mean()))
        fitted = model.fit(drawn)
        self.assertAlmostEqual(fitted.spread, 0.1, delta=0.005)
        self.assertAlmostEqual(fitted.per_sequence + fitted.constant / 2, 0.05, delta=0.001)

    def test_largest_of_normal_numbers(self):
        x = np.linspace(-10, 10, 40001)
        below = np.array([model.NormalDist().cdf(v) for v in x])
        self.assertEqual(model.slowest(1), 0)
        for n in (2, 3, 8, 32, 1024, 10**6):
            largest = np.sum(np.diff(below**n) * (x[1:] + x[:-1]) / 2)
            self.assertLess(abs(model.slowest(n) / largest - 1), 0.05, n)

    def test_all_repeats_are_fitted(self):
        """Two repeats, one slower and one quicker by 10 %, fit as their mean does, whichever stands for both."""
        exact = points(TRUE, counts=(1, 2, 4, 8))
        odd, even = ([self.scaled(p, factor) for p in exact] for factor in (1.1, 0.9))
        self.assertAlmostEqual(model.fit(odd + even).per_sequence, TRUE.per_sequence, delta=0.02 * TRUE.per_sequence)
        for error in model.errors_of(odd, odd + even):
            self.assertAlmostEqual(error, 1 / 1.1 - 1, delta=0.02)

    def test_each_rank_count_weighs_as_much(self):
        """However often one was repeated."""
        odd = points(TRUE, counts=(1, 2, 4, 8))
        odd[0] = self.scaled(odd[0], 1.2)
        self.assertEqual(model.fit([odd[0], odd[0], *odd]), model.fit(odd))

    def scaled(self, p, factor):
        return replace(p, step=factor * p.step, mean_computing=factor * p.mean_computing,
                       path={name: factor * seconds for name, seconds in p.path.items()})

    def errors_of(self, measured, *options):
        return model.errors_of(measured, measured, *options)

    def test_each_rank_count_is_predicted_from_the_others(self):
        for error in self.errors_of(points(TRUE, size=2)) + self.errors_of(points(TRUE, size=0)):
            self.assertLess(abs(error), 1e-3)

    def test_errors_see_what_the_model_lacks(self):
        odd = points(TRUE)
        odd[2] = self.scaled(odd[2], 2)
        self.assertLess(self.errors_of(odd)[2], -0.45)
        self.assertEqual(self.errors_of(odd[:1]), [])
        self.assertEqual(self.errors_of(odd, 1), [])

    def test_errors_see_a_network_that_one_point_alone_has_crossed(self):
        """What is not known of it counts as inside the nodes, which is wrong where it is much slower."""
        slow = replace(TRUE, between=Link(1e-3, 1 / 1e6))
        self.assertLess(self.errors_of(points(slow, counts=(1, 2, 4, 8)))[3], -0.25)
        same = replace(TRUE, between=TRUE.inside)
        self.assertLess(max(map(abs, self.errors_of(points(same, counts=(1, 2, 4, 8))))), 0.01)

    def test_one_node_tells_nothing_of_networks(self):
        fitted = model.fit(points(TRUE, size=0))
        self.assertIsNone(fitted.between)
        self.assertAlmostEqual(fitted.inside.seconds_per_byte / TRUE.inside.seconds_per_byte, 1, places=5)

    def test_weak_points(self):
        weak = [point(TRUE, p, 2) for p in nodes_of(2, (1, 2, 4, 8))]
        fitted = model.fit(weak)
        for larger in nodes_of(2, (1, 8, 64)):
            self.assertAlmostEqual(fitted.step(larger, 2) / TRUE.step(larger, 2), 1, places=2)

    def test_overlap_is_fitted_where_the_traces_show_it(self):
        truth = replace(TRUE, overlap=0.6)
        fitted = model.fit(points(truth))
        self.assertAlmostEqual(fitted.overlap, 0.6, places=6)
        self.assert_recovered(fitted, truth, 1e-6)
        rounding = [replace(p, overlap=0.004) for p in points(TRUE)]
        self.assertEqual(model.fit(rounding).overlap, 0)

    def test_one_rank_count(self):
        fitted = model.fit(points(TRUE, counts=(1,)))
        self.assertEqual((fitted.inside, fitted.between), (Link(0.0, 0.0), None))
        self.assertAlmostEqual(fitted.step(plan_for(1), 16), TRUE.step(plan_for(1), 16))


class Prediction(ScalingTest):
    def free(self, **coefficients):
        """A model whose network takes no time."""
        nothing = Model(0, 0, 0, 0, 0, Link(0, 0), Link(0, 0), 0, 0)
        return replace(nothing, **coefficients)

    def test_network_of_another_machine(self):
        other = TRUE.on_network(1e-6, 4e9)
        self.assertEqual(other, replace(TRUE, between=Link(1e-6, 1 / 4e9)))
        self.assertEqual(TRUE.on_network(0, 0), TRUE)
        self.assertEqual(TRUE.on_network(1e-6, 0).between, Link(1e-6, TRUE.between.seconds_per_byte))
        unknown = replace(TRUE, between=None)
        self.assertEqual(unknown.on_network(1e-6, 4e9).between, Link(1e-6, 1 / 4e9))
        self.assertEqual(unknown.on_network(1e-6, 0), unknown)

    def test_perfect_scaling(self):
        plans = nodes_of(4, (1, 2, 4, 8, 16, 32, 64))
        for kind in ("strong", "weak"):
            forecast = Forecast(self.free(per_sequence=0.1), kind, 64, plans)
            self.assertTrue(np.allclose(forecast.efficiency, 1))
            self.assertIsNone(forecast.first_below(0.5))
            self.assertIsNone(forecast.traffic_exceeds_computing())
        self.assertEqual(forecast.first_idle().ranks, 16)

    def test_efficiency_begins_with_the_first_plan(self):
        forecast = Forecast(self.free(per_sequence=0.1), "strong", 64, nodes_of(4, (4, 8)))
        self.assertTrue(np.allclose(forecast.efficiency, 1))

    def test_fixed_work_halves_the_efficiency(self):
        """10 ms per sequence and 1 s per step: 64 sequences on P ranks have the efficiency 1.64 / (0.64 + P)."""
        forecast = Forecast(self.free(per_sequence=0.01, constant=1), "strong", 64, nodes_of(0, (1, 2, 4, 8)))
        self.assertTrue(np.allclose(forecast.efficiency, [1.64 / (0.64 + n) for n in forecast.ranks]))
        i = forecast.first_below(0.5)
        self.assertEqual(forecast.ranks[i], 4)
        name, lost = forecast.losses(i)[0]
        self.assertEqual(name, "fixed work")
        self.assertAlmostEqual(lost, 0.75)

    def test_slow_network_dominates(self):
        forecast = Forecast(TRUE.on_network(1e-6, 1e6), "weak", 1, nodes_of(4, (1, 2, 4, 8, 16, 32, 64)))
        i = forecast.first_below(0.5)
        self.assertEqual(forecast.losses(i)[0][0], "between nodes")
        self.assertEqual(forecast.plans[i].nodes, 2)
        n = forecast.traffic_exceeds_computing()
        parts = forecast.parts[forecast.ranks.index(n)]
        self.assertGreater(parts["between nodes"], parts["forward, backward"])

    def test_plans_have_all_that_the_model_reads(self):
        made_up = Plan(8, 2, 4, False, 1e9, 1e6, Traffic(10, 1e6), Traffic(5, 5e5), 1 << 20, 0)
        self.assertEqual(list(TRUE.parts(made_up, 2)), list(model.PARTS))
        self.assertAlmostEqual(TRUE.parts(made_up, 2)["between nodes"], 5 * 8e-6 + 5e5 / 3e9)


if __name__ == "__main__":
    small_run.main()
