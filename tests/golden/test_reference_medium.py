#!/usr/bin/env python3
"""Tests of reference_medium.py: each formula written out, finite differences, switches, the published schedule."""

import math
import unittest
from pathlib import Path

import reference_medium as medium
import torch
from reference_plain import polar

HERE = Path(__file__).resolve().parent
TOKENS = torch.tensor([499, 3, 7, 3, 499, 11, 7, 8, 9, 3, 3, 12, 499, 5, 6, 7, 8, 9])


def deck_of(*overrides):
    return medium.Deck(HERE / "medium.toml", overrides)


def loss(deck, p, step=0):
    return medium.loss_of(deck, p, TOKENS[:-1], TOKENS[1:], medium.Settings(deck, step))


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def normed(row, eps):
    return row / math.sqrt(float(row @ row) / len(row) + eps)


class Formulas(unittest.TestCase):
    def setUp(self):
        self.deck = deck_of()
        self.m = self.deck["model"]
        self.p = {name: w.detach() for name, w in medium.first_values(self.deck, alive=True).items()}
        self.settings = medium.Settings(self.deck, 0)

    def near(self, a, b):
        self.assertLess((a - b).abs().max(), 1e-12)

    def test_streams_without_branches(self):
        """Every branch is zero, so the streams are mixes of x0, the second embedding and skips."""
        p, eps = self.p, self.m["norm_eps"]
        for name, w in p.items():
            if name.endswith("_out"):
                w.zero_()
        e = p["embedding"][TOKENS]
        rows = [e[0]]
        for t in range(1, len(TOKENS)):
            rows.append(e[t] + p["smear_factor"] * sigmoid(p["smear_gate"] @ e[t, :16]) * e[t - 1])
        for t, row in enumerate(rows):
            x = x0 = normed(row, eps)
            z = normed(p["embedding2"][TOKENS[t]], eps)
            kept = []
            for i in range(8):
                for k, (source, target) in enumerate(((2, 4), (1, 5))):
                    if i == target:
                        gate = 2 * sigmoid(p["skip_gate"][k] @ x0[:16])
                        x = x + sigmoid(p["skip_factor"][k]) * gate * kept[source]
                a, b = p[f"block.{i}.injection"]
                x = p[f"block.{i}.residual_mix"] * x + a * x0 + b * z
                kept.append(x)
            rows[t] = normed(x - p["backout"] * kept[5], eps)
        self.near(medium.final_stream(self.deck, p, TOKENS, self.settings), torch.stack(rows))

    def attention_by_hand(self, i, n, window):
        """Layer i of medium.toml: heads of 8 columns, of which pairs (0, 4) and (1, 5) turn."""
        p, b, eps, length = self.p, f"block.{i}.", self.m["norm_eps"], len(TOKENS)
        in_factor, out_factor = p[b + "attention_factors"]
        out = torch.zeros(length, 64, dtype=torch.float64)
        starts = [max(s for s in range(t + 1) if TOKENS[s] == 499) for t in range(length)]
        for h in range(8):
            rows = slice(8 * h, 8 * h + 8)
            q, k, v = ([in_factor * (part[rows] @ n[t]) for t in range(length)] for part in p[b + "qkv"].chunk(3))
            for x in (q, k):
                for t in range(length):
                    x[t] = normed(x[t], eps)
                    for pair in (0, 1):
                        angle = t * 1024.0 ** -pair
                        c, s, u, w = math.cos(angle), math.sin(angle), float(x[t][pair]), float(x[t][pair + 4])
                        x[t][pair], x[t][pair + 4] = c * u + s * w, c * w - s * u
            if i in (0, 3, 7):
                k = [torch.stack([k[max(t - (column % 4 > 1), 0)][column] for column in range(8)]) for t in range(length)]
            if i in (0, 1, 2, 5, 6, 7):
                table = p[f"value_embedding.{(0, 1, 2, None, None, 0, 1, 2)[i]}"]
                for t in range(length):
                    v[t] = v[t] + 2 * sigmoid(p[b + "value_gate"][h] @ n[t, :16]) * table[TOKENS[t], rows]
            for t in range(length):
                seen = [s for s in range(t + 1) if starts[s] == starts[t] and t - s <= window]
                weights = torch.tensor([0.1 * float(q[t] @ k[s]) for s in seen], dtype=torch.float64).exp()
                y = sum(w * v[s] for w, s in zip(weights / weights.sum(), seen))
                out[t, rows] = sigmoid(p[b + "attention_gate"][h] @ n[t, :16]) * y
        return out @ (out_factor * p[b + "attention_out"]).T

    def test_attention(self):
        self.settings.windows = {"L": 5, "S": 2}
        n = random(len(TOKENS), 64)
        for i in (0, 2, 3, 4):
            ours = medium.attention(self.deck, self.p, i, n, TOKENS, self.settings)
            self.near(ours, self.attention_by_hand(i, n, 5 if i in (0, 3) else 2))

    def test_gate_that_reads_the_value_row(self):
        deck = deck_of("model.value_layers_gated_by_input=[]", "model.gated_layers=[]", "model.key_offset_layers=[]")
        n, row = random(1, 64), self.p["value_embedding.2"][TOKENS[:1]]
        gates = 2 * torch.sigmoid(self.p["block.2.value_gate"] @ torch.cat((n[0, :8], row[0, :8])))
        factors = self.p["block.2.attention_factors"]
        v = factors[0] * (self.p["block.2.qkv"][128:] @ n[0]) + gates.repeat_interleave(8) * row[0]
        ours = medium.attention(deck, self.p, 2, n, TOKENS[:1], self.settings)
        self.near(ours[0], factors[1] * (self.p["block.2.attention_out"] @ v))

    def test_loss_of_further_targets(self):
        targets, weights = torch.tensor([4, 0, 2, 2, 1]), [1, 0.5, 0.25]
        for surplus in (False, True):
            logits = random(5, 6, seed=1).requires_grad_()
            ours = medium.weighted_loss(logits, targets, weights, surplus)
            gradient, = torch.autograd.grad(ours, logits)
            expected, by_hand = 0.0, torch.zeros(5, 6, dtype=torch.float64)
            softmax = logits.detach().softmax(1)
            for t in range(5):
                for k, weight in enumerate(weights):
                    if t + k < 5:
                        expected -= weight * float(softmax[t, targets[t + k]].log())
                        by_hand[t, targets[t + k]] -= weight
                    if t + k < 5 or surplus:
                        by_hand[t] += weight * softmax[t]
            self.assertAlmostEqual(ours.item(), expected, places=12)
            self.near(gradient, by_hand)


class Bigrams(unittest.TestCase):
    """Layers of medium_bigram.toml: six heads of 8 columns, of which pairs (0, 4) and (1, 5) turn."""

    def setUp(self):
        self.deck = medium.Deck(HERE / "medium_bigram.toml")
        self.p = {name: w.detach() for name, w in medium.first_values(self.deck, alive=True).items()}
        self.settings = medium.Settings(self.deck, 0)
        self.settings.windows = {"L": 5, "S": 3}

    def near(self, a, b):
        self.assertLess((a - b).abs().max(), 1e-12)

    def test_starts(self):
        values = medium.first_values(self.deck)
        self.assertEqual(values["block.0.injection"].tolist(), [0, float(torch.tensor(0.05))])
        self.assertEqual(values["bigram"].abs().max(), 0)

    def test_rows_are_injected_as_they_are(self):
        """Every branch is zero, and so are smear, skip and backout."""
        deck, p = self.deck, self.p
        for name, w in p.items():
            if name.endswith("_out") or name in ("smear_factor", "backout"):
                w.zero_()
        p["skip_factor"].fill_(-math.inf)
        before = [600, 600, *TOKENS[1:-1].tolist()]
        for t, token in enumerate(TOKENS.tolist()):
            hashed = ((36313 * token ^ 27191 * before[t]) + 2**31) % 2**32 - 2**31
            z = p["bigram"][hashed % 600 if t else 600]
            x = x0 = normed(p["embedding"][token], self.deck["model"]["norm_eps"])
            for i in range(6):
                a, b = p[f"block.{i}.injection"]
                x = p[f"block.{i}.residual_mix"] * x + a * x0 + b * z
            ours = medium.final_stream(deck, p, TOKENS[: t + 1], self.settings)[t]
            self.near(ours, normed(x, deck["model"]["norm_eps"]))

    def test_narrow_rows_are_the_first_columns(self):
        m = self.deck["model"] | {"bigram_columns": 20}
        wide, = medium.beside_x0(self.deck["model"], self.p, TOKENS)
        narrow, = medium.beside_x0(m, {"bigram": self.p["bigram"][:, :20]}, TOKENS)
        self.near(narrow[:, :20], wide[:, :20])
        self.assertEqual(narrow[:, 20:].abs().max(), 0)

    def heads_by_hand(self, i, n, position):
        """Q, K and V of a layer whose gates of values read its input, lists by head and token."""
        p, b, eps = self.p, f"block.{i}.", self.deck["model"]["norm_eps"]
        table, parts = p[f"value_embedding.{(1, 2, 4, 5).index(i)}"], []
        for part in p[b + "qkv"].chunk(3):
            parts.append([[p[b + "attention_factors"][0] * (part[8 * h : 8 * h + 8] @ row) for row in n] for h in range(6)])
        for h in range(6):
            for t, row in enumerate(n):
                for x in parts[:2]:
                    y = normed(x[h][t], eps)
                    for pair in (0, 1):
                        angle = position(h, t) * 1024.0 ** -pair
                        c, s, u, w = math.cos(angle), math.sin(angle), float(y[pair]), float(y[pair + 4])
                        y[pair], y[pair + 4] = c * u + s * w, c * w - s * u
                    x[h][t] = y
                gate = 2 * sigmoid(p[b + "value_gate"][h] @ row[:12])
                parts[2][h][t] = parts[2][h][t] + gate * table[TOKENS[t], 8 * h : 8 * h + 8]
        return parts

    def output(self, i, y, n):
        """Of y, lists by head and token, through the heads' gates."""
        gates, out = self.p[f"block.{i}.attention_gate"], torch.zeros(len(n), 48, dtype=torch.float64)
        for h in range(6):
            for t, row in enumerate(n):
                out[t, 8 * h : 8 * h + 8] = sigmoid(gates[h] @ row[:12]) * y[h][t]
        return out @ (self.p[f"block.{i}.attention_factors"][1] * self.p[f"block.{i}.attention_out"]).T

    def attended(self, q, keys):
        """keys: pairs of k and v."""
        weights = torch.tensor([0.3 * float(q @ k) for k, _ in keys], dtype=torch.float64).softmax(0)
        return sum(weight * v for weight, (_, v) in zip(weights, keys))

    def test_paired_heads(self):
        """Heads 0 to 2 are the even rows, 3 to 5 the odd ones; positions go by the parity of the head."""
        n, document = random(len(TOKENS), 48), (TOKENS == 499).cumsum(0).tolist()
        q, k, v = self.heads_by_hand(2, n, lambda h, t: 2 * t + h % 2)
        rows = [(2 * t + h // 3, h, t) for h in range(6) for t in range(len(n))]
        y = [[None] * len(n) for _ in range(6)]
        for row, h, t in rows:
            y[h][t] = self.attended(q[h][t], [(k[g][s], v[g][s]) for other, g, s in rows if g % 3 == h % 3
                                              and 0 <= row - other <= 3 and document[s] == document[t]])
        self.near(medium.attention(self.deck, self.p, 2, n, TOKENS, self.settings), self.output(2, y, n))

    def test_xsa(self):
        """Layer 1 without key offset, its gates of values reading its input."""
        self.deck["model"] |= {"key_offset_layers": [], "value_layers_gated_by_input": [1]}
        n, document = random(len(TOKENS), 48), (TOKENS == 499).cumsum(0).tolist()
        q, k, v = self.heads_by_hand(1, n, lambda h, t: t)
        y = [[None] * len(n) for _ in range(6)]
        for h in range(6):
            for t in range(len(n)):
                x = self.attended(q[h][t], [(k[h][s], v[h][s]) for s in range(max(0, t - 5), t + 1)
                                            if document[s] == document[t]])
                along = v[h][t] / v[h][t].norm()
                y[h][t] = x - torch.tanh(self.p["block.1.xsa"][h]) * (x @ along) * along
        self.near(medium.attention(self.deck, self.p, 1, n, TOKENS, self.settings), self.output(1, y, n))


class Gradients(unittest.TestCase):
    def test_finite_differences(self):
        """Along a random direction of all tensors of a kind."""
        for deck in map(medium.Deck, (HERE / f"medium{kind}.toml" for kind in ("", "_switches", "_bigram"))):
            p = medium.first_values(deck, alive=True)
            deck["train"]["surplus_weights"] = False
            loss(deck, p).backward()
            for kind in sorted({name.rsplit(".", 1)[-1] if "block" in name else name for name in p}):
                chosen = [name for name in p if name == kind or name.endswith("." + kind)]
                ways = {name: random(*p[name].shape, seed=j) for j, name in enumerate(chosen)}
                slope = sum(float((p[name].grad * way).sum()) for name, way in ways.items())
                values = []
                for step in (1e-6, -1e-6):
                    moved = p | {name: p[name].detach() + step * way for name, way in ways.items()}
                    values.append(loss(deck, moved).item())
                measured = (values[0] - values[1]) / 2e-6
                self.assertLess(abs(measured - slope), 1e-6 * max(1, abs(slope)), kind)


class Switches(unittest.TestCase):
    def same(self, overrides, change):
        """A deck with a mechanism switched off gives the loss of medium.toml with `change` made to its parameters."""
        full = medium.first_values(deck_of(), alive=True)
        with torch.no_grad():
            change(full)
        deck = deck_of(*overrides)
        less = {name: full[name][: shape[0]] for name, (shape, *_) in medium.parameter_table(deck["model"]).items()}
        self.assertAlmostEqual(loss(deck, less).item(), loss(deck_of(), full).item(), places=10)

    def test_no_second_embedding(self):
        self.same(["model.second_embedding=false"], lambda p: [p[f"block.{i}.injection"][1:].zero_() for i in range(8)])

    def test_no_smear(self):
        self.same(["model.smear=false"], lambda p: p["smear_factor"].zero_())

    def test_no_backout(self):
        self.same(["model.backout_from=-1"], lambda p: p["backout"].zero_())

    def test_no_gates_of_skips(self):
        self.same(["model.skip_gate=false"], lambda p: p["skip_gate"].zero_())

    def test_fewer_skips(self):
        self.same(["model.skip_from=[2]", "model.skip_to=[4]"], lambda p: p["skip_factor"][1:].fill_(-math.inf))

    def test_tables_of_their_own(self):
        deck = deck_of("model.value_tables=[]")
        p = medium.first_values(deck_of(), alive=True)
        own = p | {f"value_embedding.{j}": p[f"value_embedding.{j % 3}"] for j in range(6)}
        self.assertEqual(set(own), set(medium.parameter_table(deck["model"])))
        self.assertEqual(loss(deck, own).item(), loss(deck_of(), p).item())

    def test_bounds_of_matrices(self):
        values = medium.first_values(deck_of())
        for name, scale in (("qkv", math.sqrt(3)), ("mlp_in", math.sqrt(3) / 2)):
            largest = values[f"block.0.{name}"].abs().max().item()
            self.assertTrue(0.99 * scale / 8 < largest <= scale / 8, name)


class Schedule(unittest.TestCase):
    def setUp(self):
        """That of record 18; recipe and published numbers of its steps."""
        self.deck = deck_of("train.steps=4740", "train.extension_steps=40", "model.yarn_last_window=1664",
                            "optimizer.muon_momentum_steps=300", "optimizer.muon_momentum_cooldown=50")
        weights = [([1, 0.5, 0.25], [1, 0.5, 0]), ([1, 0.5], [1, 0])] + 10 * [([1], [])]
        blocks, rates = [3, 7, 11, 13, 15, 17, 19, 21, 23, 23, 23, 23], [1, 1.52, 1.73] + 9 * [2]
        self.deck.stages = [
            medium.STAGE | {"share": (391 if k % 3 == 2 else 392) / 4700, "long_window": 128 * blocks[k],
                            "short_window": 128 * min(11, blocks[k] // 2), "lr_factor": rates[k],
                            "targets": weights[k][0], "targets_end": weights[k][1]} for k in range(12)]
        self.deck.stages.append(self.deck.stages[-1] | {"share": 0})

    def test_stages(self):
        firsts = [math.ceil(4700 * k / 12) for k in range(12)]
        self.assertEqual(medium.boundaries(self.deck), [*firsts, 4700, 4740])
        windows = [medium.Settings(self.deck, step).windows for step in (0, 392, 784, 1175, 3134, 4739)]
        self.assertEqual([(w["S"], w["L"]) for w in windows],
                         [(128, 384), (384, 896), (640, 1408), (768, 1664), (1408, 2944), (1408, 2944)])

    def test_rates_and_momentum(self):
        for step, rate in ((0, 1), (392, 1.52), (784, 1.73), (1409, 2), (1410, 2), (3055, 1.05), (4700, 0.1), (4739, 0.1)):
            self.assertAlmostEqual(medium.rate_factor(self.deck, step), rate, places=12)
        for step, m in ((0, 0.85), (150, 0.9), (300, 0.95), (4690, 0.95), (4715, 0.9), (4739, 0.852)):
            self.assertAlmostEqual(medium.momentum(self.deck, step), m, places=12)

    def test_targets_as_published(self):
        """The script counts thirds of a quarter of all scheduled steps."""
        for step in (0, 100, 391, 400, 783, 784, 4739):
            x = 3 * step / (4700 / 4)
            weights = [1, 0.5, 0.25 * (1 - x)] if x < 1 else [1, 0.5 * (2 - x)] if x < 2 else [1]
            ours = medium.target_weights(self.deck, step)
            self.assertEqual(len(ours), len(weights))
            self.assertLess(max(abs(a - b) for a, b in zip(ours, weights)), 8.6e-4)

    def test_yarn_stops(self):
        steps = ((0, 0.1), (391, 0.1), (392, 0.116946), (784, 0.127518), (1175, 0.131778), (1567, 0.131778), (4739, 0.131778))
        for step, scale in steps:
            self.assertAlmostEqual(medium.Settings(self.deck, step).scale, scale, places=6)
        fourth, last = (medium.Settings(self.deck, step).frequency for step in (1175, 4739))
        self.assertTrue(torch.equal(fourth, last))
        self.deck["model"]["yarn_last_window"] = 0
        self.assertFalse(torch.equal(fourth, medium.Settings(self.deck, 4739).frequency))


class Updates(unittest.TestCase):
    def train(self, deck, steps):
        p = medium.first_values(deck)
        optimizer = medium.Optimizer(deck, p)
        for step in range(steps):
            for j, w in enumerate(p.values()):
                w.grad = random(*w.shape, seed=1000 * step + j)
            optimizer.step(step)
        return p, optimizer

    def test_gates_by_muon(self):
        """The first update: the polar factor's stand-in with all its rows at one length, at the rate of the group."""
        deck = deck_of("optimizer.muon_decay=0")
        start = medium.first_values(deck)["block.3.attention_gate"].detach()
        p, optimizer = self.train(deck, 1)
        g = random(8, 16, seed=list(p).index("block.3.attention_gate"))
        x = polar(deck["optimizer"], g)  # the momentum's factor has no influence but through eps
        self.assertEqual(optimizer.muon["block.3.attention_gate"][0].second.shape, (8, 1))
        even = x / x.norm(dim=1, keepdim=True)
        even *= x.norm() / even.norm()
        self.assertLess((start - 0.0015 * even - p["block.3.attention_gate"]).abs().max(), 1e-8)

    def test_rules(self):
        _, optimizer = self.train(deck_of(), 1)
        self.assertEqual(sum(name.endswith("_gate") for name in optimizer.muon), 14)
        deck = medium.Deck(HERE / "medium_switches.toml")
        _, optimizer = self.train(deck, 1)
        self.assertEqual(sum(name.endswith("_gate") for name in optimizer.muon), 0)
        self.assertEqual(len(optimizer.muon["block.0.qkv"]), 3 + 3 + 1)  # blocks of two of six heads, and W_v

    def test_adam_in_odd_steps(self):
        deck = deck_of()
        start = medium.first_values(deck)["backout"].item()
        p, _ = self.train(deck, 1)
        self.assertEqual(p["backout"].item(), start)
        p, _ = self.train(deck, 2)
        at = list(p).index("backout")
        g = sum(random(1, seed=1000 * step + at).item() for step in (0, 1))
        rate, m, v = 0.04 * medium.rate_factor(deck, 1), 0.1 * g, 0.01 * g * g
        expected = start - rate * math.sqrt(0.01) / 0.1 * m / (math.sqrt(v) + 1e-8)
        self.assertAlmostEqual(p["backout"].item(), expected, places=14)

    def test_untying(self):
        for steps, alike in ((2, True), (4, True), (5, True), (6, False)):
            p, optimizer = self.train(deck_of(), steps)
            self.assertEqual(torch.equal(p["head"], p["embedding"]), alike, steps)
        self.assertEqual(optimizer.adam["embedding"].count, 3)
        for steps, alike in ((1, True), (2, False)):  # they only start alike
            p, _ = self.train(deck_of("train.untie_step=-1"), steps)
            self.assertEqual(torch.equal(p["head"], p["embedding"]), alike, steps)


if __name__ == "__main__":
    unittest.main()
