#!/usr/bin/env python3
"""Tests of reference_plain.py: AdamW and clipping against PyTorch's, llm.c's schedule, rows, polar factors, averages, outer steps."""

import math
import unittest
from pathlib import Path

import reference_plain
import torch
from record89.optimizer import six_maps

HERE = Path(__file__).resolve().parent


class ReferencePlain(unittest.TestCase):
    def optimizer(self, *overrides):
        deck = reference_plain.Deck(HERE / "plain.toml", ("train.steps=40", *overrides))
        p = reference_plain.first_values(deck)
        return reference_plain.Optimizer(deck, p), p

    def test_adamw_is_that_of_pytorch(self):
        ours, p = self.optimizer("train.warmup=0", "train.cooldown=0", "model.tied_head=false")
        decays = [name for name in p if ours.hyper(name)[3] > 0]
        copies = {name: w.detach().clone().requires_grad_() for name, w in p.items()}
        groups = [{"params": [copies[name] for name in p if (name in decays) == on], "weight_decay": 0.1 * on}
                  for on in (False, True)]
        theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
        generator = torch.Generator().manual_seed(1)
        for step in range(5):
            for name in p:
                p[name].grad = torch.randn(p[name].shape, dtype=torch.float64, generator=generator)
                copies[name].grad = p[name].grad.clone()
            ours.step(step)
            theirs.step()
        for name in p:
            self.assertLess((p[name] - copies[name]).abs().max(), 1e-12, name)

    def test_gradients_are_clipped_as_by_pytorch(self):
        """Of a tied head the sum of both gradients counts. PyTorch adds 1e-6 to the norm."""
        for tied in ("true", "false"):
            ours, p = self.optimizer("optimizer.clip_norm=1.5", f"model.tied_head={tied}")
            generator = torch.Generator().manual_seed(1)
            for w in p.values():
                w.grad = torch.randn(w.shape, dtype=torch.float64, generator=generator)
            expected = {name: w.grad.clone().requires_grad_() for name, w in p.items()}
            if tied == "true":
                expected["head"] = (p["head"].grad + p.pop("embedding").grad).requires_grad_()
                p["head"].grad = expected["head"].detach().clone()
                del expected["embedding"]
            for w in expected.values():
                w.grad = w.detach().clone()
            norm = torch.nn.utils.clip_grad_norm_(expected.values(), 1.5)
            ours.clip(list(p.values()))
            self.assertAlmostEqual(ours.norms[0], norm.item(), places=9)
            for name, w in p.items():
                self.assertLess((w.grad - expected[name].grad).abs().max(), 1e-8, name)

    def test_schedule_is_that_of_llm_c(self):
        ours, _ = self.optimizer("train.warmup=10", "train.cooldown=0.75")
        for step in range(40):
            ratio = (step - 10) / 30
            expected = (step + 1) / 10 if step < 10 else 0.1 + 0.5 * (1 + math.cos(math.pi * ratio)) * 0.9
            self.assertAlmostEqual(ours.rate_factor(step), expected, places=12)

    def test_rows_cross_documents_and_end(self):
        deck = reference_plain.Deck(HERE / "plain.toml", ("data.row_length=4",))
        seen = reference_plain.visible(deck, torch.tensor([499, 1, 499, 2, 3, 4]), 3)
        self.assertEqual(seen.int().tolist(), [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0],
                                               [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]])

    def test_many_steps_make_a_polar_factor(self):
        o = {"orthogonalisation": "newton_schulz", "orthogonalisation_maps": [2, -1.5, 0.5], "orthogonalisation_steps": 60}
        u = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        left, _, right = torch.linalg.svd(u, full_matrices=False)
        self.assertLess((reference_plain.polar(o, u) - left @ right).abs().max(), 1e-10)

    def test_six_maps(self):
        """Those of reference89.py, and on the diagonal the polynomials of singular values."""
        o = {"orthogonalisation": "six_maps", "orthogonalisation_maps": [], "orthogonalisation_steps": 0}
        u = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        self.assertLess((reference_plain.polar(o, u) - six_maps(u)).abs().max(), 1e-12)
        values = torch.tensor([1, 0.3, 0.01], dtype=torch.float64)
        x = values / (1.02 * values.norm() + 1e-6)
        for a, b, c in reference_plain.SIX_MAPS:
            x = a * x + b * x**3 + c * x**5
        self.assertLess((reference_plain.polar(o, torch.diag(values)) - torch.diag(x)).abs().max(), 1e-12)

    def test_gradients_of_matrices_in_bf16(self):
        ours, p = self.optimizer("optimizer.matrix_gradients=\"bf16\"", "optimizer.clip_norm=0.5")
        for w in p.values():
            w.grad = torch.full_like(w, 1 + 2**-8 + 2**-20)
        ours.round_gradients()
        self.assertEqual(p["block.0.qkv"].grad.unique().tolist(), [1 + 2**-7])
        self.assertEqual(p["head"].grad.unique().tolist(), [1 + 2**-8 + 2**-20])
        ours.clip(list(p.values()))
        kept = p["block.0.mlp_in"].grad
        self.assertTrue(torch.equal(kept, kept.bfloat16().double()))
        self.assertLess((kept / (1 + 2**-7) * ours.norms[0] / 0.5 - 1).abs().max(), 2**-8)

    def test_averages_and_outer_steps_by_hand(self):
        """Of two tensors, with weights that are known after each step."""
        deck = reference_plain.Deck(HERE / "plain_average.toml", ("train.steps=5", "optimizer.outer_every=2"))
        deck.averages = [reference_plain.AVERAGE | {"tensors": ["a.qkv.v", "b"], "from_last": 4, "every": 2, "rate": 0.25,
                                                    "blend": 0.5}]
        p = {"a.qkv": torch.zeros(3, 1, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
        averages = reference_plain.Averages(deck, p)
        for step, value in enumerate((7, 1, 2, 3, 5)):
            for w in p.values():
                w.fill_(value)
            averages.take(step)
        averages.finish()
        average = 1 + 0.25 * (3 - 1)  # of the steps 1, 3 and 4
        average += 0.25 * (5 - average)
        self.assertEqual(p["a.qkv"].flatten().tolist(), [5, 5, 0.5 * 5 + 0.5 * average])
        self.assertEqual(p["b"].tolist(), [0.5 * 5 + 0.5 * average] * 2)
        p = {"b": torch.zeros(1, dtype=torch.float64)}
        outer, slow, momentum = reference_plain.OuterNesterov(deck, p), 0.0, 0.0
        for step in range(6):
            p["b"] += step + 1
            outer.step(step)
            if step % 2:
                d = -(2 * step + 1)
                momentum = 0.5 * momentum + d
                slow -= 0.7 * (d + 0.5 * momentum)
                self.assertAlmostEqual(p["b"].item(), slow, places=12)


if __name__ == "__main__":
    unittest.main()
