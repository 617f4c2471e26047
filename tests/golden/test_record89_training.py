#!/usr/bin/env python3
"""Tests of record89/ in training: run them with `python3 reference89.py test`, or all with `python3 -m unittest`."""

import json
import math
import unittest
from dataclasses import asdict, replace
from pathlib import Path

import torch

from make_goldens import RECORD89
from record89 import data, optimizer, parameters, schedule
from record89.config import CONFIGS, MINI, NARROW, Config, Stage, as_dictionary, check, override
from record89.model import Tokens
from record89.run import train
from record89.support import ALIVE, EARLIER, RECORD, losses_of, random, run_of, shards_of
from reference import norms, read_shard

HERE = Path(__file__).resolve().parent


class Optimizer(unittest.TestCase):
    def test_polar_express_makes_singular_values_one(self):
        for shape in ((16, 48), (48, 48), (96, 24)):
            values = torch.linalg.svdvals(optimizer.polar_express(random(*shape)))
            self.assertGreater(values.min().item(), 0.85, shape)
            self.assertLess(values.max().item(), 1.15, shape)

    def test_normalisation_keeps_the_norm_and_evens_the_rows(self):
        x = random(12, 5) * torch.arange(1, 13)[:, None]
        second = torch.zeros(12, 1, dtype=x.dtype)
        y = optimizer.normalised(x, second, 0.9)
        torch.testing.assert_close(second, 0.1 * x.square().mean(1, keepdim=True))
        torch.testing.assert_close(y.norm(), x.norm())
        rows = y.norm(dim=1)
        torch.testing.assert_close(rows, rows.mean().expand(12))
        wide = torch.zeros(1, 12, dtype=x.dtype)
        torch.testing.assert_close(optimizer.normalised(x.T, wide, 0.9), y.T)

    def test_units_of_the_record(self):
        c = replace(RECORD, vocabulary=10, padding=1, bigram_rows=10)
        shapes = {}
        for row in parameters.parameter_table(c):
            if row.group == "matrix":
                for unit in optimizer.units(c, row.name, torch.empty(row.shape, device="meta")):
                    key = (*unit.momentum.shape, tuple(unit.second.shape), unit.factor)
                    shapes[key] = shapes.get(key, 0) + 1
        self.assertEqual(shapes, {(256, 768, (1, 768), 1.0): 60, (768, 768, (768, 1), 1.0): 20,
                                  (3072, 768, (3072, 1), 2.0): 11, (3072, 768, (3072, 1), 4.0): 11})

    def test_units_of_narrow_heads_have_live_rows_alone(self):
        run = run_of(replace(CONFIGS["tiny_alive"], **NARROW))
        shapes = [tuple(unit.momentum.shape) for unit in run.optimizer.units if unit.name == "block.1.qkv"]
        self.assertEqual(shapes, [(8, 48)] * 6 + [(48, 48)])
        weights = run.p["block.1.qkv"]
        row = torch.arange(144)
        live = (row % 8 < 4) | (row >= 96)
        self.assertTrue((weights[~live] == 0).all() and (weights[live] != 0).all())
        run.step()
        self.assertTrue((weights[~live] == 0).all())

    def test_a_matrix_whose_gradient_is_zero_decays(self):
        c = replace(MINI, zero_starts=True)  # W2 is zero, so the gradient of W1 is
        run = run_of(c)
        before = run.p["block.0.mlp_in"].detach().clone()
        run.step()
        torch.testing.assert_close(run.p["block.0.mlp_in"], before * (1 - 2 * 0.023 * 1.2 * 0.023))

    def test_adam_written_out(self):
        c = replace(ALIVE, tied=False)
        run, name = run_of(c), "block.1.value_gate"
        p = run.p[name].detach().clone()
        m, v, g, count = 0.0, 0.0, 0.0, 0
        for step in range(6):
            _, gradients = run.step()
            g = g + gradients[name]
            if step % 2:
                count += 1
                m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
                lr = 0.008 * schedule.lr_factor(c, step)
                u = lr * math.sqrt(1 - 0.99**count) / (1 - 0.9**count) * m / (v.sqrt() + 1e-10)
                p = p - u - torch.where(u * p > 0, lr * lr * 0.005 * p, torch.zeros_like(p))
                g = 0.0
            torch.testing.assert_close(run.p[name], p, rtol=1e-12, atol=1e-14)

    def test_embedding_follows_the_head_until_the_split(self):
        run = run_of(ALIVE)
        split, equal = schedule.split_step(ALIVE), []
        self.assertEqual(split, 13)
        for _ in range(ALIVE.total_steps):
            run.step()
            equal.append(torch.equal(run.p["head"], run.p["embedding"]))
        self.assertEqual(equal, [True] * 15 + [False] * 5)  # the first separate update is that of step 15
        adam = run.optimizer.adam
        self.assertEqual((adam["head"].count, adam["embedding"].count), (10, 10))

    def test_gradients_are_sums_over_tokens(self):
        run = run_of(ALIVE)
        settings = schedule.settings(ALIVE, 0)
        sequences = run.stream.step(2, 64, 24)
        _, both = run.gradients(sequences, settings)
        parts = [run.gradients([s], settings)[1] for s in sequences]
        for name, g in both.items():
            torch.testing.assert_close(g, parts[0][name] + parts[1][name], rtol=1e-9, atol=1e-12)
        doubled = run_of(replace(ALIVE, gradient_divisor=1)).gradients(sequences, settings)[1]
        torch.testing.assert_close(doubled["head"], 2 * both["head"])


class Whole(unittest.TestCase):
    def test_gradients_against_finite_differences(self):
        c = replace(ALIVE, surplus_weights=False)
        run, settings, h = run_of(c), schedule.settings(ALIVE, 0), 1e-6
        sequence = run.stream.step(2, 64, 24)[0]
        _, gradients = run.gradients([sequence], settings)
        for seed, (name, p) in enumerate(run.p.items()):
            direction = random(*p.shape, seed=seed)
            direction /= direction.norm()
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    p.add_(sign * h * direction)
                    ends.append(run.model.loss(sequence, settings).item())
                    p.sub_(sign * h * direction)
            slope = (ends[0] - ends[1]) / (2 * h) / c.gradient_divisor
            expected = (gradients[name] * direction).sum().item()
            self.assertLess(abs(slope - expected), 1e-6 * max(1.0, gradients[name].norm().item()), name)

    def test_every_gradient_of_alive_is_alive(self):
        for c in (ALIVE, CONFIGS["tiny_alive"], CONFIGS["blocks81_alive"]):
            run = run_of(c)
            _, gradients = run.step()
            dead = [name for name, g in gradients.items() if g.norm() == 0]
            self.assertEqual(dead, [])

    def test_a_later_token_changes_no_earlier_stream(self):
        run = run_of(CONFIGS["tiny_alive"])
        sequence = run.stream.step(2, 64, 24)[0]
        changed = data.Sequence(sequence.inputs.copy(), sequence.targets)
        changed.inputs[40] = (changed.inputs[40] + 1) % 60
        streams = []
        for s in (sequence, changed):
            run.model.trace = {}
            run.model.loss(s, schedule.settings(run.c, 0))
            streams.append(run.model.trace["final"].detach())
        torch.testing.assert_close(streams[0][:40], streams[1][:40], rtol=0, atol=0)
        self.assertGreater((streams[0] - streams[1])[40].norm().item(), 1e-3)

    def test_each_switch_changes_the_losses(self):
        base = losses_of(ALIVE, 4)
        switches = [
            {"paired_layers": ()}, {"xsa_layers": ()}, {"attention_gate_layers": ()}, {"dc_layers": ()},
            {"value_layers": (1, 3)}, {"late_source": None}, {"key_offset": False}, {"smear": False}, {"bigram": False},
            {"sign_rows": 8}, {"sign_rows": 0}, {"bigram_columns": 12}, {"value_layers_gated_by_input": (1,)},
            {"gate_nets": "static"}, {"gate_nets": "constant"}, {"gate_nets": "scalars", "dc_layers": ()},
            {"mudd_scale": 0.2}, {"mudd_value_scale": 1.15}, {"mudd_backout": 0.4}, {"mudd": "static"},
            {"mudd": "constant"}, {"mudd": "off"}, {"skip": None}, {"x0_injection": False}, {"softcap": "tanh"},
            {"surplus_weights": False}, {"orthogonalisation": "newton_schulz"}, {"second_moment": False},
            {"cautious_decay": False}, {"heads_per_block": 6}, {"mlp_out_transposed": False}, {"adam_period": 1},
            {"tied": False}, {"gradient_divisor": 1e10}, {"fp8_head": True}, {"fp8_mlp": True}, {"rounding": True},
            {"dc_window": 5}, {"bf16_masters": ("value_embedding",)},
            {"qk_dims": (2, 4, 0, 2, 4), "narrow_frequencies": 1},
        ]
        for switch in switches:
            c = check(replace(ALIVE, **switch))
            with self.subTest(**switch):
                found = losses_of(c, 4)
                self.assertTrue(all(map(math.isfinite, found)))
                self.assertGreater(max(abs(a - b) for a, b in zip(found, base)), 1e-9)

    def test_yarn_and_split_change_later_steps_alone(self):
        base = losses_of(ALIVE, 17)
        for switch, first in (({"yarn": False}, 6), ({"split_stage": None}, 16)):
            found = losses_of(replace(ALIVE, **switch), 17)
            changed = [abs(a - b) > 1e-9 for a, b in zip(found, base)]
            self.assertEqual(changed.index(True), first, switch)

    def test_moments_in_bf16_count_from_the_second_update_on(self):
        base, found = (losses_of(replace(ALIVE, bf16_moments=groups), 6) for groups in ((), ("bigram", "head")))
        self.assertEqual([a != b for a, b in zip(found, base)].index(True), 4)

    def test_forms_of_record_81(self):
        """Each from its formula, on the streams that the model keeps."""
        c = replace(EARLIER, bigram_columns=7, sign_rows=0)
        run = run_of(c)
        p, sequence = run.p, run.stream.step(2, 64, 24)[0]
        x0 = random(64, c.width)
        gates = run.model.gates(0, x0)
        expected = 2 / (1 + torch.exp(-(x0[:, :12] @ p["skip_gate"])))
        torch.testing.assert_close(gates[("skip", 2)], expected[:, None])
        torch.testing.assert_close(gates[("bigram", 3)], p["block.3.injection"][1].expand(64, 1))
        self.assertEqual(run.model.gates(1, x0), {})
        bigrams = run.model.bigrams(Tokens(c, sequence, run.model.prefixes))
        self.assertEqual(bigrams[:, 7:].norm().item(), 0)
        torch.testing.assert_close(bigrams[3, :7], p["bigram"][data.bigram_rows(sequence.inputs, 97)[3]])
        n, rows = random(64, c.width, seed=1), random(64, c.width, seed=2)
        gate = 2 / (1 + torch.exp(-(n[:, :12] @ p["block.3.value_gate"].T)))
        found = run.model.gated_value(3, n, [rows, rows, rows])
        torch.testing.assert_close(found, gate[:, :, None] * rows.view(64, c.heads, c.head_dim))

    def test_scalars_at_their_start_are_the_constants_but_for_gates_of_heads(self):
        plain = replace(MINI, attention_gate_layers=(), dc_layers=(), skip=None)
        scalars, constant = (losses_of(replace(plain, gate_nets=mode), 1) for mode in ("scalars", "constant"))
        self.assertAlmostEqual(scalars[0], constant[0], places=6)

    def test_constants_are_the_nets_at_their_start(self):
        net, static, constant = (losses_of(replace(MINI, gate_nets=mode, mudd=mode), 1)
                                 for mode in ("net", "static", "constant"))
        self.assertAlmostEqual(net[0], static[0], places=6)  # biases are rounded to fp32, constants are not
        self.assertAlmostEqual(net[0], constant[0], places=6)

    def test_single_precision_is_close_to_double(self):
        for c, bound in ((ALIVE, 2e-5), (CONFIGS["tiny_alive"], 2e-5)):
            double, single = losses_of(c, 8), losses_of(c, 8, torch.float32)
            self.assertLess(max(abs(a - b) for a, b in zip(double, single)), bound)

    def test_every_rung_trains(self):
        seen = set()
        for name, c in CONFIGS.items():
            if name.startswith("mini_") and name != "mini_alive":
                with self.subTest(name):
                    found = losses_of(check(c), 6)
                    self.assertLess(found[-1], found[0])
                    seen.add(round(found[-1], 9))
        self.assertEqual(len(seen), 11)
        self.assertEqual(CONFIGS["mini_11_dc"], ALIVE)

    def test_results_repeat_and_start_from_given_values(self):
        c = MINI
        prefixes = data.synthetic_prefixes(c.vocabulary, c.padded_vocabulary)
        validation = (shards_of(c)[1], 2, 64)
        (first, run), (second, _) = (
            train(c, shards_of(c), validation, prefixes, torch.float64, 2, {0}, {0, 2}, values, lambda _: None)
            for values in (None, parameters.initial_values(c)))
        self.assertEqual(first, second)
        self.assertEqual(sorted(first["validation_losses"]), [0, 2])
        self.assertAlmostEqual(first["validation_losses"][0], math.log(64), delta=0.1)
        self.assertEqual(set(first["final_norms"]), set(run.p))

    def test_golden_files_are_of_this_program(self):
        default = json.loads(json.dumps(as_dictionary(Config())))
        for name in RECORD89:
            with self.subTest(name):
                golden = json.loads((HERE / f"record89_{name}.json").read_text())
                c = CONFIGS[name]
                # Fields and groups that are younger than a file have their defaults there.
                made = default | golden["config"] | {"groups": default["groups"] | golden["config"]["groups"]}
                made["stages"] = [asdict(Stage(**stage)) for stage in made["stages"]]
                made = json.loads(json.dumps(made))
                self.assertEqual(made, json.loads(json.dumps(as_dictionary(c))))
                run = run_of(c)
                for j, shard in enumerate(run.stream.shards):
                    self.assertEqual(read_shard(HERE / f"tokens89_{j}.bin").tolist(), shard.tolist())
                loss, gradients = run.step()
                self.assertAlmostEqual(loss, golden["losses"][0], delta=1e-10)
                for key, value in norms(gradients).items():
                    expected = golden["gradient_norms"]["0"][key]
                    self.assertAlmostEqual(value, expected, delta=1e-8 * max(1, expected), msg=key)
                self.assertAlmostEqual(run.step()[0], golden["losses"][1], delta=2e-2 if c.fp8_mlp else 1e-9)

    def test_overrides(self):
        c = override(MINI, ["paired_layers=()", "dc_window=7", "mudd=static"])
        self.assertEqual((c.paired_layers, c.dc_window, c.mudd), ((), 7, "static"))
        for text in ("no_field=1", "heads=5", "paired_layers=(1,)"):
            with self.assertRaises(SystemExit):
                override(MINI, [text])


if __name__ == "__main__":
    unittest.main()
