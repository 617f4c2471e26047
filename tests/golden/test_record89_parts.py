#!/usr/bin/env python3
"""Tests of the parts of record89/: run them with `python3 reference89.py test`, or all with `python3 -m unittest`."""

import math
import unittest
from dataclasses import replace

import numpy as np
import torch

from record89 import attention, data, fp8, loss, mlp, schedule
from record89.candidates import candidates
from record89.config import MINI, TINY
from record89.numbers import rms_norm
from record89.support import ALIVE, RECORD, random, run_of
from reference import e4m3, e5m2


class Schedules(unittest.TestCase):
    def test_stages_end_at_rounded_thirds(self):
        self.assertEqual(schedule.boundaries(RECORD), [(0, 423), (423, 847), (847, 1270), (1270, 1285)])
        self.assertEqual(schedule.split_step(RECORD), 847)
        self.assertEqual(schedule.boundaries(TINY), [(0, 6), (6, 12), (12, 18), (18, 20)])
        self.assertEqual(schedule.split_step(TINY), 13)

    def test_learning_rate(self):
        known = {0: 1.0, 423: 1.52, 507: 1.52, 600: 1.3546, 846: 0.9123, 847: 1.0271, 1000: 0.7098, 1269: 0.1521,
                 1270: 0.15, 1284: 0.15}
        for step, factor in known.items():
            self.assertAlmostEqual(schedule.lr_factor(RECORD, step), factor, delta=5e-5, msg=step)

    def test_momentum(self):
        known = {0: 0.85, 150: 0.9, 299: 0.85 + 0.1 * 299 / 300, 300: 0.95, 1235: 0.95, 1260: 0.9, 1284: 0.852}
        for step, value in known.items():
            self.assertAlmostEqual(schedule.momentum(RECORD, step), value, places=12, msg=step)

    def test_weights_of_targets_never_reach_the_end_of_a_stage(self):
        self.assertEqual(schedule.target_weights(RECORD, 0), [1, 0.5, 0.25])
        self.assertAlmostEqual(schedule.target_weights(RECORD, 422)[2], 0.25 / 423)
        self.assertEqual(schedule.target_weights(RECORD, 423), [1, 0.5])
        self.assertAlmostEqual(schedule.target_weights(RECORD, 846)[1], 0.5 / 424)
        self.assertEqual(schedule.target_weights(RECORD, 847), [1])
        prefix = [schedule.prefix_weight(RECORD, step) for step in (0, 422, 423, 847, 1284)]
        self.assertEqual(prefix, [0.25, 0.25, 0.25, 0, 0])
        self.assertAlmostEqual(schedule.prefix_weight(RECORD, 635), 0.125)

    def test_yarn_scales(self):
        for step, scale in ((0, 0.1), (423, 0.116946), (847, 0.127518), (1270, 0.131778)):
            self.assertAlmostEqual(schedule.rotary_at(RECORD, step).scale, scale, delta=5e-7)

    def test_published_scales_of_narrow_heads(self):
        pull_request_349 = replace(RECORD, attention_scale=0.085)
        for step, wide, narrow in ((0, 0.085, 0.12), (423, 0.099404, 0.140335), (847, 0.108390, 0.153021),
                                   (1270, 0.112011, 0.158134)):
            self.assertAlmostEqual(schedule.rotary_at(pull_request_349, step).scale, wide, delta=5e-7)
            self.assertAlmostEqual(schedule.rotary_at(pull_request_349, step, narrow=True).scale, narrow, delta=5e-7)

    def test_yarn_keeps_fast_pairs_and_slows_slow_ones(self):
        first, second = (np.array(schedule.rotary_at(RECORD, s).frequencies) for s in (0, 423))
        self.assertEqual(len(first), 32)
        self.assertAlmostEqual(first[-1], 1 / 1024)
        self.assertEqual(second[0], first[0])  # 384 / 2 pi turns exceed 32
        self.assertAlmostEqual(second[-1] / first[-1], 384 / 896)

    def test_the_last_validation_alone_has_its_long_window(self):
        windows = [(s.window_short, s.window_long) for s in map(lambda n: schedule.validation_settings(RECORD, n),
                                                                (0, 1250, 1285))]
        self.assertEqual(windows, [(128, 384), (640, 1408), (768, 2560)])


class Data(unittest.TestCase):
    def test_documents_are_cut_and_sequences_start_with_one(self):
        eot, tokens = 9, np.array([1, 9, 1, 2, 3, 4, 5, 9, 6, 9, 7, 8, 1, 9, 2, 9, 3, 4, 9, 5])
        stream = data.Stream([tokens], eot)
        first, second = stream.step(2, 5, 4)
        np.testing.assert_array_equal(first.inputs, [9, 1, 2, 3, 9])  # the first document is cut to 4 tokens
        np.testing.assert_array_equal(first.targets, [1, 2, 3, 9, 6])
        np.testing.assert_array_equal(second.inputs, [9, 7, 8, 1, 9])  # exactly full: one token more is taken
        np.testing.assert_array_equal(second.targets, [7, 8, 1, 9, 2])
        self.assertEqual(stream.document, 4)

    def test_a_sequence_that_is_full_at_a_document_takes_its_first_token(self):
        stream = data.Stream([np.array([9, 1, 9, 2, 3, 9, 4, 4])], 9)
        (sequence,) = stream.step(1, 2, 10)
        np.testing.assert_array_equal(sequence.targets, [1, 9])
        (sequence,) = stream.step(1, 2, 10)  # the document whose first token was a target is lost
        np.testing.assert_array_equal(sequence.inputs, [9, 4])

    def test_a_shard_that_cannot_fill_the_step_is_left_whole(self):
        stream = data.Stream([np.array([9, 1, 2, 9, 3]), np.array([0, 9, 4, 5, 9, 6, 7])], 9)
        first, second = stream.step(2, 2, 10)
        np.testing.assert_array_equal(first.inputs, [9, 4])
        np.testing.assert_array_equal(second.targets, [6, 7])
        self.assertEqual((stream.shard, stream.document), (1, 2))
        with self.assertRaises(SystemExit):
            stream.step(1, 2, 10)

    def test_tiny_drops_a_sequence_at_the_end_of_a_shard(self):
        stream = run_of(TINY).stream
        for step in range(13):
            stage = TINY.stages[schedule.stage_index(TINY, step)]
            stream.step(TINY.sequences, stage.length, stage.longest)
        self.assertEqual(stream.shard, 0)
        self.assertIsNotNone(stream.fill(stream.shards[0], 1, 192, 48)[0])
        stream.step(2, 192, 48)
        self.assertEqual(stream.shard, 1)

    def test_bigram_rows(self):
        rows = data.bigram_rows(np.array([50256, 11, 50256, 0, 7]), 377280)
        np.testing.assert_array_equal(rows, [377279, 197920, 191345, 6358, 254191])
        self.assertEqual((27191 * 377279) % 2**32, 1668658697)

    def test_bigram_remainders_are_not_negative(self):
        rows = TINY.bigram_rows
        product = (27191 * (rows - 1) + 2**31) % 2**32 - 2**31
        self.assertLess(product, 0)
        expected = ((36313 * 5) ^ product) % (rows - 1)
        self.assertEqual(data.bigram_rows(np.array([3, 5]), rows)[1], expected)

    def test_sign_rows(self):
        np.testing.assert_array_equal(data.sign_rows([50256, 11, 0], 8192), [0, (50256 ^ 11) % 8192, 11])

    def test_prefix_table(self):
        table = data.prefix_table({0: b"a", 1: b"b", 2: b"ab", 3: b"abcd", 4: b"bd", 6: b"abc"}, 9)
        np.testing.assert_array_equal(table, [-1, -1, 0, 6, 1, -1, 2, -1, -1])


class Loss(unittest.TestCase):
    columns, length = 40, 12
    weights, prefix_weight = [1.0, 0.5, 0.2], 0.3

    def setUp(self):
        self.z = (20 * random(self.length, self.columns)).requires_grad_()
        self.targets = torch.arange(self.length) * 7 % self.columns
        self.targets[3] = self.targets[4]  # one token twice among the targets of a position
        self.prefixes = torch.where(torch.arange(self.length) % 3 == 0, -1, self.targets // 2)

    def gradient(self, c):
        value = loss.token_losses(c, self.z, self.targets, self.weights, self.prefixes, self.prefix_weight)
        return value.detach(), torch.autograd.grad(value.sum(), self.z)[0]

    def test_columns_that_are_not_chosen_have_no_part(self):
        chosen = torch.zeros(self.columns, dtype=torch.bool)
        chosen[self.targets] = True
        inside = torch.nonzero(chosen).flatten()
        column = torch.full((self.columns,), -1)
        column[inside] = torch.arange(inside.numel())
        prefixes = torch.where(self.prefixes >= 0, column[self.prefixes], -1)
        self.assertLess((prefixes >= 0).sum(), (self.prefixes >= 0).sum())
        part = loss.token_losses(RECORD, self.z[:, inside], column[self.targets], self.weights, prefixes,
                                 self.prefix_weight)
        value = loss.token_losses(RECORD, self.z, self.targets, self.weights, self.prefixes, self.prefix_weight, chosen)
        torch.testing.assert_close(value, part, rtol=1e-14, atol=0)
        gradients = [torch.autograd.grad(v.sum(), self.z)[0] for v in (value, part)]
        torch.testing.assert_close(*gradients, rtol=1e-14, atol=1e-16)

    def test_candidates_of_a_sequence(self):
        c = replace(RECORD, vocabulary=500, padding=512, sequences=4)
        targets = torch.tensor([3, 77, 3])
        # From 512 / 4 on: 20011 k mod 512 for k = 128 + 2 * 11, ...
        walk = [20011 * k % 512 for k in range(150, 158)]
        chosen = candidates(c, 10, 2, 1, targets)
        self.assertEqual(set(torch.nonzero(chosen).flatten().tolist()), {3, 77, *walk})
        self.assertTrue(candidates(c, 512, 2, 1, targets).all())

    def test_a_loss_written_out(self):
        value, _ = self.gradient(RECORD)
        logits = 23 / (1 + torch.exp(-(self.z.detach() + 5) / 7.5))
        for i in range(self.length):
            row = logits[i]
            lse, expected = row.exp().sum().log(), 0.0
            for k, weight in enumerate(self.weights):
                if i + k < self.length:
                    expected += weight * (lse - row[self.targets[i + k]])
            if i % 3:
                expected += self.prefix_weight * (lse - row[self.targets[i] // 2])
            self.assertAlmostEqual(value[i].item(), float(expected), places=10)

    def test_the_formula_is_the_gradient_but_for_the_last_rows(self):
        for form in ("sigmoid", "tanh"):
            value, formula = self.gradient(replace(RECORD, softcap=form))
            same, exact = self.gradient(replace(RECORD, softcap=form, surplus_weights=False))
            torch.testing.assert_close(value, same)
            torch.testing.assert_close(formula[:-2], exact[:-2], rtol=1e-12, atol=1e-14)
            self.assertGreater((formula - exact)[-2].norm().item(), 1e-4)

    def test_the_surplus_is_the_weight_of_the_missing_targets(self):
        _, formula = self.gradient(RECORD)
        _, exact = self.gradient(replace(RECORD, surplus_weights=False))
        u = torch.sigmoid((self.z.detach() + 5) / 7.5)
        p = (23 * u).softmax(-1)
        surplus = 23 / 7.5 * u * (1 - u) * p * torch.tensor([0.0] * 10 + [0.2, 0.7], dtype=u.dtype)[:, None]
        torch.testing.assert_close(formula - exact, surplus, rtol=1e-10, atol=1e-14)

    def test_fp8_head(self):
        c, (sx, sw, sg) = replace(RECORD, fp8_head=True), (4.48, 280.0, 448 / 0.75)
        x, w = random(6, 16).requires_grad_(), (0.3 * random(40, 16, seed=1)).requires_grad_()
        z = loss.head_product(c, x, w, training=True)
        xq, wq = e4m3(x.detach() * sx).double(), e4m3(w.detach() * sw).double()
        torch.testing.assert_close(z, (xq @ wq.T / (sx * sw)).bfloat16().double(), rtol=0, atol=0)
        g = random(6, 40, seed=2) / 10
        gq = e5m2(g * sg).double()
        dx, dw = torch.autograd.grad(z, (x, w), g)
        torch.testing.assert_close(dx, gq @ wq / (sg * sw))
        torch.testing.assert_close(dw, gq.T @ xq / (sg * sx))
        torch.testing.assert_close(loss.head_product(c, x, w, training=False), x @ w.T)


class Attention(unittest.TestCase):
    c, length, scale = MINI, 24, 0.37

    def setUp(self):
        self.document = torch.tensor([0] * 5 + [1] * 9 + [2] * 10)
        self.q, self.k, self.v = (random(self.length, self.c.heads, self.c.head_dim, seed=s) for s in range(3))

    def test_windows_count_the_keys_before_the_query(self):
        mask = attention.seen(self.document, 3)
        self.assertEqual(mask[13].nonzero().flatten().tolist(), [10, 11, 12, 13])
        self.assertEqual(mask[6].nonzero().flatten().tolist(), [5, 6])

    def test_paired_heads_written_out(self):
        rotary, window, half = schedule.Rotary((0.8,), self.scale), 5, self.c.heads // 2
        y = attention.paired_attention(self.c, self.q, self.k, self.v, rotary, self.document, window)

        def turned(x, t, h):
            angle = 0.8 * (2 * t + h % 2)
            a, b = x[t, h, 0].item(), x[t, h, 1].item()
            cos, sin = math.cos(angle), math.sin(angle)
            return torch.cat([torch.tensor([a * cos + b * sin, b * cos - a * sin], dtype=x.dtype), x[t, h, 2:]])

        for t in (0, 6, 12, 23):
            for h in range(self.c.heads):
                row, scores, values = 2 * t + h // half, [], []
                for other in range(self.length):
                    for g in (h % half, h % half + half):
                        seen_row = 2 * other + g // half
                        if row - window <= seen_row <= row and self.document[t] == self.document[other]:
                            scores.append(self.scale * turned(self.q, t, h) @ turned(self.k, other, g))
                            values.append(self.v[other, g])
                expected = torch.stack(scores).softmax(0) @ torch.stack(values)
                torch.testing.assert_close(y[t, h], expected, rtol=1e-12, atol=1e-13)

    def test_layouts_of_rotary_pairs_are_permutations(self):
        adjacent = replace(TINY, rotary_pairs="adjacent")
        halves = replace(TINY, rotary_pairs="halves")
        x = random(self.length, 6, 8)
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # maps adjacent dims to the layout of halves
        rotary = schedule.rotary_at(TINY, 0)
        tables = attention.rotary_tables(TINY, rotary, torch.arange(self.length), x.dtype, 4)
        cos, sin = (table[:, None] for table in tables)
        torch.testing.assert_close(attention.rotate(adjacent, x, cos, sin)[..., order],
                                   attention.rotate(halves, x[..., order], cos, sin))
        self.assertEqual(attention.still_dims(adjacent, 8, rotary).tolist(), [False] * 4 + [True] * 4)
        self.assertEqual(attention.still_dims(halves, 8, rotary).tolist(), [False, False, True, True] * 2)
        narrow = {"qk_dims": (4,) * TINY.layers}
        self.assertEqual(attention.live_dims(replace(adjacent, **narrow), 0).tolist(), [0, 1, 2, 3])
        self.assertEqual(attention.live_dims(replace(halves, **narrow), 0).tolist(), [0, 1, 4, 5])

    def test_xsa_takes_away_the_part_along_v(self):
        y = attention.without_value(self.q, self.v, torch.full((self.length, self.c.heads), 40.0))
        self.assertLess((y * self.v).sum(-1).abs().max().item(), 1e-12)

    def test_dc_gradients_follow_their_formula(self):
        c = replace(self.c, dc_window=4)
        q, k, v = (x.clone().requires_grad_() for x in (self.q, self.k, self.v))
        raw, w2 = (random(self.length, c.heads, seed=s).requires_grad_() for s in (5, 6))
        y = attention.dc_correction(c, q, k, v, raw, w2, self.scale, self.document)
        dy = random(*y.shape, seed=7)
        found = torch.autograd.grad(y, (q, k, v, raw, w2), dy)

        w1 = rms_norm(raw.detach().clone().requires_grad_(), c.dc_eps)
        mask = attention.seen(self.document, 3)
        p = attention.probabilities(self.q, self.k, self.scale, mask)  # [H, T, T]
        mixed = torch.einsum("th,hts->ts", w1.detach(), p)
        along = torch.einsum("thd,shd->hts", dy, self.v) * mask
        d = torch.einsum("th,hts->ts", w2.detach(), along)
        dw2 = torch.einsum("ts,hts->th", mixed, along)
        dv = torch.einsum("th,ts,thd->shd", w2.detach(), mixed, dy)
        dw1 = torch.einsum("ts,hts->th", d, p)
        dp = torch.einsum("th,ts->hts", w1.detach(), d)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        dq = self.scale * torch.einsum("hts,shd->thd", ds, self.k)
        dk = self.scale * torch.einsum("hts,thd->shd", ds, self.q)
        raw_again = raw.detach().clone().requires_grad_()
        draw = torch.autograd.grad(rms_norm(raw_again, c.dc_eps), raw_again, dw1)[0]
        for a, b in zip(found, (dq, dk, dv, draw, dw2)):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)

    def test_key_offset_moves_still_dims_of_long_layers_alone(self):
        run = run_of(replace(ALIVE, dc_layers=(), mudd="off", gate_nets="constant"))
        c = run.c
        weights = {n: run.p[f"block.1.{n}"] for n in ("qkv", "attention_out", "attention_factors")}
        n = random(self.length, c.width)
        gates = {"xsa": random(self.length, c.heads), "attention_gate": torch.ones(self.length, c.heads)}

        def output(config, layer):
            rotary = schedule.rotary_at(c, 0)
            return attention.attention(config, layer, n, weights, None, gates, rotary, 9, self.document)

        without = replace(c, key_offset=False)
        self.assertGreater((output(c, 1) - output(without, 1)).norm().item(), 1e-6)
        torch.testing.assert_close(output(replace(c, long_layers=()), 1), output(without, 1))


class Mlp(unittest.TestCase):
    def test_scales_are_delayed(self):
        c = replace(ALIVE, fp8_mlp=True, mlp_out_present_scales=2)
        run = run_of(c)
        name, largest = "block.3.mlp_out", []
        self.assertEqual(run.fp8.activation, [[1.0] * c.layers] * 2)
        for _ in range(4):
            run.step()
            largest.append(run.p[name].detach().abs().max().item())
            expected = largest[-1] if len(largest) <= 2 else 1.12 * largest[-2]
            self.assertAlmostEqual(run.fp8.weight[3], expected / 448, places=14)
        self.assertNotEqual(run.fp8.activation[0], run.fp8.activation[1])
        self.assertNotIn(1.0, run.fp8.activation[0])

    def test_sequences_may_share_their_scale(self):
        c = replace(ALIVE, fp8_mlp=True, fp8_mlp_shared=True)
        alone, shared = run_of(replace(c, fp8_mlp_shared=False)), run_of(c)
        for run in (alone, shared):
            run.step()
        self.assertEqual(shared.fp8.activation[0], shared.fp8.activation[1])
        self.assertEqual(shared.fp8.activation[0], [max(pair) for pair in zip(*alone.fp8.activation)])
        before = shared.fp8.activation[0].copy()
        shared.step()
        self.assertNotEqual(shared.fp8.activation[0], before)

    def test_both_passes_in_8_bits(self):
        """Each product written out; the scales over three steps, the first of which finds W2 = 0."""
        for product in (fp8.FIXED_MLP, fp8.DELAYED_MLP):
            largest = 57344 if product.gradient == "e5m2" else 448
            form = e5m2 if product.gradient == "e5m2" else e4m3
            n, dy = random(20, 24), random(20, 24, seed=3)
            w = {"mlp_in": 0.2 * random(96, 24, seed=1), "mlp_out": torch.zeros(96, 24, dtype=torch.double)}
            state = fp8.State(replace(MINI, layers=1), product, {name: lambda _, name=name: w[name] for name in w})
            sx, sh, sd = 2**-4 if product.scale_x else 8 / 448, 16 / 448, 2**-6
            for step in range(3):
                s1, s2 = (w[name].abs().max().clamp_min(1e-12).item() / 448 for name in ("mlp_in", "mlp_out"))
                sg = product.scale_g or dy.abs().max().item() / largest
                leaves = [x.clone().requires_grad_() for x in (n, w["mlp_in"], w["mlp_out"])]
                y = fp8.Mlp.apply(*leaves, state, 0)
                dn, dw1, dw2 = torch.autograd.grad(y, leaves, dy)
                x8, w18, w28, g8 = (f((value / scale).clamp(-top, top)).double() for f, value, scale, top in (
                    (e4m3, n, sx, 448), (e4m3, w["mlp_in"], s1, 448), (e4m3, w["mlp_out"], s2, 448),
                    (form, dy, sg, largest)))
                h = (x8 @ w18.T * sx * s1).relu().square()
                h8 = e4m3((h / sh).clamp_max(448)).double()
                torch.testing.assert_close(y, h8 @ w28 * sh * s2)
                torch.testing.assert_close(dw2, h8.T @ g8 * sh * sg)
                dz = 2 * (g8 @ w28.T) * sg * s2 * (h8 * sh).sqrt()
                d8 = form((dz / sd).clamp(-largest, largest)).double()
                torch.testing.assert_close(dw1, d8.T @ x8 * sd * sx)
                torch.testing.assert_close(dn, d8 @ w18 * sd * s1)
                state.after_update()
                self.assertEqual(dz.norm().item() > 0, step > 0)
                sx = sx if product.scale_x else 1.25 * n.abs().max().item() / 448
                sh = product.margin * h.max().item() / 448
                sd = 1.25 * dz.abs().max().item() / largest if step > 0 else sd
                w["mlp_out"] = 0.2 * random(96, 24, seed=4 + step)
                state.w["mlp_out", 0] = w["mlp_out"].abs().max().item() / 448

    def test_weights_have_exact_scales_in_16_steps(self):
        w = {"mlp_in": torch.ones(2, 2, dtype=torch.double), "mlp_out": torch.ones(2, 2, dtype=torch.double)}
        state = fp8.State(replace(MINI, layers=1), fp8.FIXED_MLP, {name: lambda _, name=name: w[name] for name in w})
        for step in range(20):
            expected = 1.12 * step if step >= 16 else step + 1
            self.assertAlmostEqual(state.w["mlp_in", 0] * 448, expected)
            w["mlp_in"] += 1
            state.after_update()

    def test_the_factor_of_qkv_is_in_the_scale(self):
        n, w, g = random(20, 24), random(72, 24, seed=1), random(20, 72, seed=2)
        factor = torch.tensor(0.5, dtype=torch.double)
        state = fp8.State(replace(MINI, layers=1), fp8.FIXED_QKV, {"qkv": lambda _: w})
        leaves = [x.clone().requires_grad_() for x in (n, w, factor)]
        out = fp8.Qkv.apply(*leaves, state, 0)
        dn, dw, dfactor = torch.autograd.grad(out, leaves, g)
        sw = w.abs().max().item() / 448
        x8, w8, g8 = (e4m3((a / s).clamp(-448, 448)).double() for a, s in ((n, 2**-4), (w, sw), (g, 1 / 448)))
        torch.testing.assert_close(out, x8 @ w8.T * (2**-4 * sw * 0.5))
        torch.testing.assert_close(dw, 0.5 * g8.T @ x8 * (2**-4 / 448))
        torch.testing.assert_close(dn, g8 @ w8 * (sw * 0.5 / 448))
        torch.testing.assert_close(dfactor, (g * out).sum() / 0.5)
        self.assertEqual(g8.abs().max().item(), 448, "gradients beyond 1 are clipped")

    def test_forward_is_rounded_and_backward_is_not(self):
        c, n = MINI, random(20, 24)
        w1, w2 = 0.2 * random(96, 24, seed=1), 0.2 * random(96, 24, seed=2)
        tau, sigma = (w2.abs().max() / 448).item(), 0.02
        leaves = [x.clone().requires_grad_() for x in (n, w1, w2)]
        y, h = mlp.Fp8Mlp.apply(*leaves, c, sigma, tau)
        top, s = n.abs().max(), w1.abs().max() / 448
        z = (e4m3(n * 448 / top).double() @ e4m3(w1 / s).double().T) * s * top / 448
        torch.testing.assert_close(h, z.relu().square())
        torch.testing.assert_close(y, e4m3((h / sigma).clamp_max(448)).double() @ e4m3(w2 / tau).double() * sigma * tau)
        dy = random(20, 24, seed=3)
        dn, dw1, dw2 = torch.autograd.grad(y, leaves, dy)
        dz = dy @ w2.T * 2 * z.relu()
        for found, expected in ((dn, dz @ w1), (dw1, dz.T @ n), (dw2, h.detach().T @ dy)):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    unittest.main()
