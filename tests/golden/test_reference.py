#!/usr/bin/env python3
"""Tests of reference.py itself: run them with `python3 -m unittest` in this directory."""

import json
import math
import unittest
from pathlib import Path

import torch

import reference

HERE = Path(__file__).resolve().parent
DECKS = ["record13", "record18", "record20", "record21"]
SMALL = ["model.vocabulary=60", "model.width=16", "model.head_dim=8", "model.heads=2", "train.length=300"]


def splitmix64(z):
    mask = 2**64 - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def values_of_format(mantissa_bits, smallest_exponent, largest):
    """All non-negative values, in order; the parity of the index is the parity of the last bit."""
    values, exponent = [], smallest_exponent
    steps = range(0, 2 << mantissa_bits)  # subnormals, then the first binade
    while not values or values[-1] < largest:
        values += [m * 2.0 ** (exponent - mantissa_bits) for m in steps]
        steps, exponent = range(1 << mantissa_bits, 2 << mantissa_bits), exponent + 1
    return torch.tensor([v for v in values if v <= largest], dtype=torch.float64)


def nearest(x, values):
    """Nearest of the sorted values, a tie to the even index."""
    upper = torch.searchsorted(values, x.abs()).clamp(1, len(values) - 1)
    below, above = x.abs() - values[upper - 1], values[upper] - x.abs()
    choice = torch.where((above < below) | ((above == below) & (upper % 2 == 0)), upper, upper - 1)
    return values[choice] * x.sign()


class Formats(unittest.TestCase):
    def check(self, rounded, values):
        ties = (values[1:] + values[:-1]) / 2
        spread = torch.logspace(-20, 18, 200001, base=2, dtype=torch.float64)
        x = torch.cat([values, ties, spread]).float()
        x = torch.cat([x, -x])
        self.assertTrue(torch.equal(rounded(x).double(), nearest(x.double(), values)))

    def test_e4m3_is_the_nearest_value(self):
        values = values_of_format(3, -6, 448.0)
        self.assertEqual(len(values), 127)
        self.check(reference.e4m3, values)

    def test_e5m2_is_the_nearest_value(self):
        values = values_of_format(2, -14, 57344.0)
        self.assertEqual(len(values), 124)
        self.check(reference.e5m2, values)


class InitialValues(unittest.TestCase):
    def test_streams_follow_the_formula(self):
        name, seed = "block.3.qkv", 7
        key = splitmix64(seed ^ reference.fnv1a64(name))
        u = [(splitmix64((key + i * 0x9E3779B97F4A7C15) % 2**64) >> 11) * 2.0**-53 for i in range(24)]
        uniform = torch.tensor([0.3 * (2 * v - 1) for v in u[:12]])
        normal = [math.sqrt(-2 * math.log(1 - u[2 * i])) * math.cos(2 * math.pi * u[2 * i + 1]) for i in range(12)]
        torch.testing.assert_close(reference.draw(seed, name, (3, 4), "uniform", 0.3), uniform.view(3, 4))
        torch.testing.assert_close(reference.draw(seed, name, (3, 4), "normal", 0), torch.tensor(normal).view(3, 4))

    def test_hash_of_a_known_string(self):
        self.assertEqual(reference.fnv1a64("a"), 0xAF63DC4C8601EC8C)

    def test_moments(self):
        normal = reference.draw(1, "embedding", (1000, 1000), "normal", 0).double()
        self.assertLess(abs(normal.mean().item()), 4e-3)
        self.assertLess(abs(normal.var().item() - 1), 6e-3)
        self.assertLess(abs(normal.pow(4).mean().item() - 3), 4e-2)


class Schedules(unittest.TestCase):
    def windows(self, kind, first, last, quantum, rounding, steps):
        deck = reference.read_deck(HERE / "record13.toml", [
            f"window.kind={kind}", f"window.first={first}", f"window.last={last}", f"window.quantum={quantum}",
            f"window.rounding={rounding}", f"train.steps={steps}"])
        return [reference.windows_at(deck, s) for s in range(steps)]

    def test_token_window_of_record_13(self):
        got = [w["L"] for w in self.windows("token", 64, 1792, 64, "floor", 1750)]
        self.assertEqual(got, [("token", 64 * ((s * 1728 // 1750 + 64) // 64)) for s in range(1750)])

    def test_block_windows_of_records_18_and_21(self):
        got = self.windows("block", 128, 1856, 128, "floor", 1390)
        self.assertEqual([w["L"][1] for w in got], [(128 * (1390 - s) + 1856 * s) // (1390 * 128) for s in range(1390)])
        got = self.windows("block", 0, 1728, 128, "ceil", 1770)
        blocks = [max(1, -(-1728 * s // (1770 * 128))) for s in range(1770)]
        self.assertEqual([w["L"][1] for w in got], blocks)
        self.assertEqual([w["S"][1] for w in got], [max(1, n // 2) for n in blocks])


class Masks(unittest.TestCase):
    def test_masks_against_their_definition(self):
        document = torch.tensor([0, 0, 1, 1, 1, 2] * 50).cumsum(0).div(40, rounding_mode="floor")
        for window in [("token", 70), ("block", 1), ("block", 2)]:
            mask = reference.attention_mask(document, window, torch.float64)
            for q in range(0, 300, 7):
                for k in range(300):
                    near = q - k < window[1] if window[0] == "token" else q // 128 - k // 128 < window[1]
                    seen = k <= q and document[q] == document[k] and near
                    self.assertEqual(mask[q, k].item(), 0.0 if seen else -math.inf)


class NewtonSchulz(unittest.TestCase):
    def test_singular_values_gather_around_one_and_vectors_stay(self):
        generator = torch.Generator().manual_seed(1)
        for shape in [(3, 64, 64), (1, 256, 64), (1, 64, 256)]:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            u, s, vt = torch.linalg.svd(x, full_matrices=False)
            middle = u.transpose(1, 2) @ reference.newton_schulz(x) @ vt.transpose(1, 2)
            diagonal = middle.diagonal(dim1=1, dim2=2)
            self.assertLess((middle - torch.diag_embed(diagonal)).abs().max().item(), 1e-9)
            well_conditioned = diagonal[s > 0.01 * torch.linalg.matrix_norm(x)[:, None]]
            self.assertGreater(well_conditioned.min().item(), 0.65)
            self.assertLess(diagonal.max().item(), 1.25)


class Gradients(unittest.TestCase):
    def test_directional_derivative_of_every_parameter(self):
        for name in DECKS:
            deck = reference.read_deck(HERE / f"{name}.toml", SMALL)
            parameters, _ = reference.make_parameters(deck, torch.float64)
            model = reference.Model(deck, parameters, end_of_text=59)
            generator = torch.Generator().manual_seed(2)
            tokens = torch.randint(0, 60, (301,), generator=generator)
            windows = reference.windows_at(deck, 12)
            loss = lambda: model.loss(tokens[:-1], tokens[1:], windows)
            loss().backward()
            for parameter_name, p in parameters.items():
                direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                expected = (p.grad * direction).sum().item()
                with torch.no_grad():
                    h = 1e-5
                    p.add_(direction, alpha=h)
                    above = loss().item()
                    p.sub_(direction, alpha=2 * h)
                    below = loss().item()
                    p.add_(direction, alpha=h)
                with self.subTest(deck=name, parameter=parameter_name):
                    self.assertAlmostEqual((above - below) / (2 * h), expected, delta=1e-8 + 1e-5 * abs(expected))


class GoldenFiles(unittest.TestCase):
    def golden(self, name):
        return json.loads((HERE / f"{name}.json").read_text())

    def test_zero_outputs_start_at_the_logarithm_of_the_padded_vocabulary(self):
        self.assertAlmostEqual(self.golden("record21_zero")["losses"][0], math.log(512), delta=2e-6)

    def test_losses_fall(self):
        for name in DECKS + ["record21_fp8", "record21_zero"]:
            losses = self.golden(name)["losses"]
            self.assertEqual(len(losses), 20)
            self.assertLess(losses[-1], losses[0] - 2)

    def test_fp8_head_gives_nearly_the_gradients_of_fp32(self):
        fp32, fp8 = self.golden("record21"), self.golden("record21_fp8")
        self.assertAlmostEqual(fp8["losses"][0], fp32["losses"][0], delta=1e-3)
        for parameter, norm in fp32["gradient_norms_step1"].items():
            self.assertAlmostEqual(fp8["gradient_norms_step1"][parameter], norm, delta=0.1 * norm)

    def test_double_precision_agrees(self):
        for name in DECKS + ["record21_zero"]:
            deck = reference.read_deck(HERE / f"{name}.toml", [])
            double = reference.train(deck, [HERE / "tokens.bin"], 3, torch.float64, end_of_text=499)
            golden = self.golden(name)
            for got, expected in zip(golden["losses"], double["losses"]):
                self.assertAlmostEqual(got, expected, delta=3e-6)
            for parameter, norm in double["gradient_norms_step1"].items():
                self.assertAlmostEqual(golden["gradient_norms_step1"][parameter], norm, delta=1e-8 + 1e-5 * norm)


if __name__ == "__main__":
    unittest.main()
