#!/usr/bin/env python3
"""Tests of reference_plain.py: AdamW against PyTorch's, llm.c's schedule, rows, polar factors."""

import math
import unittest
from pathlib import Path

import reference_plain
import torch

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


if __name__ == "__main__":
    unittest.main()
