"""The model of the step time: counts of work and traffic, the fit, and the forecast."""

import json
import math
import subprocess
import tomllib
from dataclasses import replace

import numpy as np
from support import ROOT, ScalingTest, buckets, small_run

from study import model, plan
from study.model import Forecast, Link, Model, Point, Workload

TRUE = dict(per_sequence=0.05, constant=0.004, muon=2e-11, adam=3e-9, reduce_scatter=Link(5e-6, 1 / 2e9),
            all_gather=Link(8e-6, 1 / 3e9), all_reduce=Link(4e-6, 0.0))


def load(gradients="fp32", on_gpus=False):
    """Of the small model."""
    return Workload(buckets(), gradients, on_gpus)


def true_model(overlap=0.0):
    return Model(load(), **TRUE, overlap=overlap)


def point(truth, ranks, sequences, noise=None, sharing=1.0):
    """A measurement of a machine that behaves as `truth`; noise(): factor on each time."""
    noise = noise or (lambda: 1.0)
    parts = {name: seconds * noise() for name, seconds in truth.parts(ranks, sequences, sharing).items()}
    work, fixed, muon, adam, scatter, gather, reduce = parts.values()
    path = {"computing": work + fixed, "muon": muon, "adam": adam, "reduce_gradients": scatter,
            "gather_weights": gather, "sync": reduce}
    return Point(ranks, sequences, sum(path.values()), path, sharing, truth.overlap if ranks > 1 else math.nan)


def points(truth, counts=(1, 2, 4, 8, 16), sequences=16, **options):
    return [point(truth, n, sequences / n, **options) for n in counts]


def dry_run(deck, *arguments, ranks=1):
    """The plan, the resolved deck, and the buckets."""
    shown = subprocess.run([small_run.PROGRAM, "train", str(deck), "--dry-run", "--json", "--ranks", str(ranks),
                            *arguments], check=True, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout
    found = json.loads(shown)
    return found, tomllib.loads(found["deck"]), [plan.bucket_of(table, deck) for table in found["buckets"]]


class Counts(ScalingTest):
    def test_buckets_hold_the_parameters(self):
        decks = sorted((ROOT / "inputs").glob("*.toml"))
        self.assertGreaterEqual(len(decks), 5)
        for deck in decks:
            with self.subTest(deck=deck.name):
                found, _, table = dry_run(deck)
                self.assertEqual(sum(b.size for b in table), found["parameters"])
                self.assertEqual([len(b["tensors"]) > 0 for b in found["buckets"]], len(table) * [True])

    def test_bytes_are_those_of_the_program(self):
        """It tells what the ranks send on average; the last rank has up to a unit of each bucket more."""
        for gradients in ("fp32", "bf16", "e5m2"):
            found, _, table = dry_run("deck.toml", f"comm.gradients={gradients}", ranks=2)
            work = Workload(table, gradients, on_gpus=False)
            sent = work.reduce_scatter(2)[1] + work.all_gather(2)[1]
            self.assertAlmostEqual(sent, found["sent_bytes"], delta=0.01 * sent)

    def test_bytes_count_rows_that_are_read_and_the_period(self):
        """Of tables a rank sends the rows that its tokens may read, in two of adam_period steps the weights of Adam's
        tensors once, and of what is not trained nothing."""
        def told(*overrides):
            found, resolved, table = dry_run(ROOT / "inputs/record89.toml", "validation.length=128", *overrides, ranks=2)
            lengths = [stage["length"] for stage in resolved["stage"]]
            work = Workload(table, resolved["comm"]["gradients"], False, max(lengths),
                            resolved["optimizer"]["adam_period"])
            sequences = resolved["train"]["sequences"] / 2
            sent = work.reduce_scatter(2, sequences)[1] + work.all_gather(2)[1]
            self.assertAlmostEqual(sent, found["sent_bytes"], delta=0.01 * sent)
            return found["sent_bytes"]

        short = [f"stage.{i}.length=128" for i in range(4)] + [f"stage.{i}.longest_document=0" for i in range(4)]
        width, rows = 768, 50304
        tables = (5 * 50257 + rows + 377280) * width
        all_rows, few_rows = told(), told(*short)
        self.assertLess(few_rows, all_rows)
        every_step = told("optimizer.adam_period=1")
        self.assertAlmostEqual(every_step - all_rows, 4 * (tables + rows * width) / 2 / 2, delta=0.01 * every_step)
        self.assertEqual(told("model.bigram_sign_rows=0"), all_rows)

    def test_buckets_are_those_of_the_program(self):
        """By shape and quarter of the layers, the last quarter first; each table alone; scalars and skips."""
        self.assertEqual([(b.units, b.unit_size) for b in buckets()],
                         4 * [(4, 64 * 64), (1, 256 * 64), (1, 64 * 256)]
                         + [(384, 64), (257, 64), (257, 64), (16, 1), (2, 1)])
        self.assertEqual([b.lookup for b in buckets()], 13 * [False] + 2 * [True] + 2 * [False])
        changed = buckets("model.layers_without_attention=[2, 3]", "model.value_path=first")
        self.assertEqual([(b.units, b.unit_size) for b in changed],
                         2 * [(1, 256 * 64), (1, 64 * 256)] + 2 * [(4, 64 * 64), (1, 256 * 64), (1, 64 * 256)]
                         + [(384, 64), (257, 64), (10, 1), (2, 1)])
        six = buckets("model.layers=6")
        self.assertEqual([b.units for b in six if b.rows], [8, 2, 2, 4, 1, 1, 8, 2, 2, 4, 1, 1])

    def test_tables_that_are_not_trained_do_not_travel(self):
        _, _, table = dry_run(ROOT / "inputs/record89.toml")
        fixed, = (b for b in table if b.fixed)
        self.assertFalse(fixed.lookup or fixed.rows)
        load = Workload(table, "fp32", on_gpus=False)
        without = Workload([b for b in table if not b.fixed], "fp32", on_gpus=False)
        self.assertEqual(load.all_gather(8), without.all_gather(8))
        self.assertEqual(load.reduce_scatter(8), without.reduce_scatter(8))

    def test_muon_work_shrinks_to_one_matrix_of_each_shape(self):
        work = load()
        square = 5 * 6 * 64**3
        wide = 5 * (4 * 64 * 64 * 256 + 2 * 64**3)
        self.assertEqual([b.units for b in work.matrices], [16, 8])
        self.assertEqual(work.muon_flops(1), 16 * square + 8 * wide)
        self.assertEqual(work.muon_flops(3), 6 * square + 3 * wide)
        self.assertEqual(work.muon_flops(4096), square + wide)
        self.assertEqual(work.last_muon_split(), 16)
        self.assertEqual(work.muon_flops(16), work.muon_flops(17))
        self.assertGreater(work.muon_flops(15), work.muon_flops(16))

    def test_traffic(self):
        work = load()
        size = sum(b.size for b in work.buckets)
        self.assertEqual(work.reduce_scatter(1), (0, 0))
        self.assertEqual(work.all_gather(1), (0, 0))
        self.assertEqual(work.all_reduce(1), 0)
        self.assertEqual(work.reduce_scatter(2)[0], len(work.buckets))
        # With two ranks, one of them owns half a row more of each of the two tables of 257 rows.
        self.assertEqual(work.reduce_scatter(2)[1], 4 * (size / 2 + 2 * 64 / 2))
        self.assertEqual([work.all_reduce(n) for n in (2, 3, 4, 5, 8, 4096)], [1, 2, 2, 3, 3, 12])
        # The owner of a whole matrix receives it from every rank and sends it to every rank.
        self.assertGreater(work.reduce_scatter(512)[1], 10 * work.reduce_scatter(16)[1])
        for n in (2, 4, 512):
            self.assertEqual(work.all_gather(n), (17 * (n - 1), work.reduce_scatter(n)[1]))

    def test_traffic_of_gpus(self):
        """Gradients travel as the deck says; of the weights, tensors as bf16 and scalars as fp32."""
        cpus = load()
        size, scalars = sum(b.size for b in cpus.buckets), 16 + 2
        for gradients, element in (("fp32", 4), ("bf16", 2), ("e5m2", 1)):
            gpus = load(gradients, on_gpus=True)
            self.assertEqual(gpus.reduce_scatter(4)[1], element * cpus.reduce_scatter(4)[1] / 4)
            self.assertEqual(gpus.all_gather(2)[1], 2 * ((size - scalars) / 2 + 2 * 64 / 2) + 4 * scalars / 2)

    def test_pieces(self):
        """A part of 32 MiB comes in pieces of 1 MiB to CPUs, of 64 MiB / peers, at most 8, to GPUs."""
        cpus, gpus = (load(on_gpus=on_gpus) for on_gpus in (False, True))
        cpus.buckets = gpus.buckets = [plan.Bucket(2, 1 << 23)]
        self.assertEqual([cpus.reduce_scatter(n)[0] for n in (2, 4)], [32, 3 * 32])
        self.assertEqual([gpus.reduce_scatter(n)[0] for n in (2, 4, 65)], [1, 3 * 2, 64 * 4])


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


class Fit(ScalingTest):
    def assert_recovered(self, fitted, truth, tolerance):
        pairs = [(getattr(fitted, name), getattr(truth, name)) for name in ("per_sequence", "constant", "muon", "adam")]
        for name in ("reduce_scatter", "all_gather", "all_reduce"):
            a, b = getattr(fitted, name), getattr(truth, name)
            pairs += [(a.latency, b.latency), (a.seconds_per_byte, b.seconds_per_byte)]
        for found, true in pairs:
            self.assertLessEqual(abs(found - true), tolerance * true, (fitted, truth))

    def test_exact_times_give_the_parameters(self):
        truth = true_model()
        fitted = model.fit(points(truth), truth.workload)
        self.assert_recovered(fitted, truth, 1e-6)
        self.assertEqual(fitted.overlap, 0)
        for error in model.leave_one_out(points(truth), truth.workload):
            self.assertLess(abs(error), 1e-6)

    def test_shared_cores_give_the_parameters(self):
        truth = true_model()
        shared = [point(truth, n, 16 / n, sharing=max(1, n / 4)) for n in (1, 2, 4, 8, 16)]
        self.assert_recovered(model.fit(shared, truth.workload), truth, 1e-6)

    def test_noisy_times_give_them_within_a_tenth(self):
        """Times that scatter by 1 %: what makes up a step comes out within 10 %, steps left out within 5 %."""
        truth = true_model()
        for seed in range(5):
            draw = np.random.default_rng(seed)
            noisy = points(truth, noise=lambda: draw.normal(1, 0.01))
            fitted = model.fit(noisy, truth.workload)
            for name in ("per_sequence", "muon", "adam"):
                self.assertLess(abs(getattr(fitted, name) / getattr(truth, name) - 1), 0.1)
            self.assertLess(abs(fitted.all_reduce.latency / truth.all_reduce.latency - 1), 0.1)
            for n in (1, 16, 32):
                self.assertLess(abs(fitted.step(n, 4) / truth.step(n, 4) - 1), 0.05)
            for error in model.leave_one_out(noisy, truth.workload):
                self.assertLess(abs(error), 0.05)

    def test_leave_one_out_sees_what_the_model_lacks(self):
        truth = true_model()
        odd = points(truth)
        odd[2] = replace(odd[2], step=2 * odd[2].step, path={k: 2 * v for k, v in odd[2].path.items()})
        errors = model.leave_one_out(odd, truth.workload)
        self.assertLess(errors[2], -0.45)
        self.assertEqual(model.leave_one_out(odd[:1], truth.workload), [])

    def test_weak_points(self):
        truth = true_model()
        weak = [point(truth, n, 2) for n in (1, 2, 4, 8)]
        fitted = model.fit(weak, truth.workload)
        for n in (1, 8, 64):
            self.assertAlmostEqual(fitted.step(n, 2) / truth.step(n, 2), 1, places=6)

    def test_overlap_is_fitted_where_the_traces_show_it(self):
        truth = true_model(overlap=0.6)
        fitted = model.fit(points(truth), truth.workload)
        self.assertAlmostEqual(fitted.overlap, 0.6, places=6)
        self.assert_recovered(fitted, truth, 1e-6)
        rounding = [replace(p, overlap=0.004) for p in points(true_model())]
        self.assertEqual(model.fit(rounding, truth.workload).overlap, 0)

    def test_one_rank_count(self):
        truth = true_model()
        fitted = model.fit(points(truth, counts=(1,)), truth.workload)
        self.assertEqual(fitted.reduce_scatter, Link(0.0, 0.0))
        self.assertAlmostEqual(fitted.step(1, 16), truth.step(1, 16))


class Prediction(ScalingTest):
    def test_network_of_another_machine(self):
        other = model.on_network(true_model(), 1e-6, 4e9)
        self.assertEqual(other.reduce_scatter, Link(1e-6, 1 / 4e9))
        self.assertEqual(other.all_reduce.latency, 1e-6)
        self.assertEqual(other.per_sequence, TRUE["per_sequence"])
        fitted = true_model()
        self.assertEqual(model.on_network(fitted, 0, 0), fitted)

    def test_rank_counts(self):
        self.assertEqual(Forecast(true_model(), "strong", 12, 4096).ranks, [1, 2, 3, 4, 6, 12])
        self.assertEqual(Forecast(true_model(), "weak", 1, 5).ranks, [1, 2, 3, 4, 5])
        self.assertEqual(Forecast(true_model(), "weak", 1, 4096).ranks[-1], 4096)

    def test_perfect_scaling(self):
        work = load()
        perfect = Model(work, 0.1, 0, 0, 0, Link(0, 0), Link(0, 0), Link(0, 0), 0)
        for kind in ("strong", "weak"):
            forecast = Forecast(perfect, kind, 64, 64)
            self.assertTrue(np.allclose(forecast.efficiency, 1))
            self.assertIsNone(forecast.first_below(0.5))
            self.assertIsNone(forecast.traffic_exceeds_computing())

    def test_fixed_work_halves_the_efficiency(self):
        """10 ms per sequence and 1 s per step: 64 sequences on P ranks have the efficiency 1.64 / (0.64 + P)."""
        work = load()
        truth = Model(work, 0.01, 1, 0, 0, Link(0, 0), Link(0, 0), Link(0, 0), 0)
        forecast = Forecast(truth, "strong", 64, 64)
        self.assertTrue(np.allclose(forecast.efficiency, [1.64 / (0.64 + n) for n in forecast.ranks]))
        i = forecast.first_below(0.5)
        self.assertEqual(forecast.ranks[i], 4)
        name, lost = forecast.losses(i)[0]
        self.assertEqual(name, "fixed work")
        self.assertAlmostEqual(lost, 0.75)

    def test_slow_network_dominates(self):
        forecast = Forecast(model.on_network(true_model(), 1e-6, 1e7), "weak", 1, 64)
        i = forecast.first_below(0.5)
        self.assertIn(forecast.losses(i)[0][0], ("reduce-scatter", "all-gather"))
        n = forecast.traffic_exceeds_computing()
        parts = forecast.parts[forecast.ranks.index(n)]
        self.assertGreater(parts["reduce-scatter"] + parts["all-gather"], parts["forward, backward"])


if __name__ == "__main__":
    small_run.main()
