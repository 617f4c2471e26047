"""The deck of pull request 349 in small: all of its eight stages, the period of its tables, its momenta and averages, its
MLP in 8 bits."""

import json
import os
import shutil
from unittest import mock

import harness
from harness import losses, restarted_from, small_run
from small_record89 import DECK, SMALL, STEPS, Record89FaultTest
from test_fp8 import QKV

# Length, longest document, windows. The first steps are 0, 5, 6, 8, 9, 11, 17 and 18; Adam updates in every second step.
STAGES = [(128, 40, 16, 48), *4 * [(256, 90, 32, 96)], (384, 120, 48, 128), (256, 120, 48, 128), (128, 120, 64, 160)]
TOKENS = [512, *4 * [1024], 1536, 1024, 512]  # of a step
FIRST = [0, 5, 6, 8, 9, 11, 17, 18]
SQUEEZED = (
    "model.qk_dims=[4,4,4,8,4,4,0,4,4,4,8]", "train.untie_step=19", "optimizer.momentum_mix_from=9",
    "group.2.period_from=8", "average.0.from_last=8", "average.1.from_last=6", "average.2.from_last=7",
    *(f"stage.{i}.attention_document=50" for i in (5, 6, 7)),
    *(f"stage.{i}.prefix=0" for i in range(5)),
    *(f"stage.{i}.{key}={value}" for i, values in enumerate(STAGES)
      for key, value in zip(("length", "longest_document", "short_window", "long_window"), values)))


class Recipe349(Record89FaultTest):
    def prepare(self, folder):
        super().prepare(folder)
        shutil.copy(DECK.with_name("recipe349.toml"), folder / "deck.toml")

    def train(self, ranks, *overrides, code=0):
        return super().train(ranks, *SQUEEZED, *overrides, code=code)

    def figures(self, key):
        """A figure of the steps or validations by their steps, which count from 1."""
        lines = map(json.loads, (self.run_folder() / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line[key] for line in lines if key in line}

    def test_every_stage(self):
        """Each has its tokens; the loss falls; the averages are those of the finished model alone."""
        self.train(1)
        ends = [*FIRST[1:], STEPS]
        tokens = [t for t, first, end in zip(TOKENS, FIRST, ends) for _ in range(first, end)]
        found = self.figures("loss")
        self.assertEqual(len(found), STEPS)
        passed = self.figures("tokens")
        self.assertEqual([passed[step + 1] - passed[step] for step in range(STEPS)], tokens)
        validation = self.figures("validation_loss")
        self.moved_aside()
        self.train(1, *(f"average.{i}.blend=0" for i in range(3)))
        self.assertEqual(self.figures("loss"), found)
        raw = self.figures("validation_loss")
        self.assertNotEqual(validation.pop(STEPS), raw[STEPS])
        self.assertEqual(validation, {step: loss for step, loss in raw.items() if step < STEPS})
        self.assertLess(raw[STEPS], raw[0] - 0.5)

    def test_restarts(self):
        """Within the period of the tables and before the averages; within these and the taper."""
        whole = losses(self.train(2))
        aside, found, before = self.moved_aside(), {}, None
        for stop in (10, 17, STEPS):
            job = self.train(2, *([f"stop.step={stop}"] if stop < STEPS else []), code=75 if stop < STEPS else 0)
            self.assertEqual(restarted_from(job), before)
            found |= losses(job)
            before = stop
        self.assertEqual(found, whole)
        self.assert_identical(aside)

    def test_sixty_four_ranks_in_fp8(self):
        """With candidates and QKV in 8 bits too, on eight nodes of eight ranks, one of these nodes and all again. Last
        bits, which the order of sums decides, may round to other 8-bit values."""
        deck = ("train.sequences=64", "data.end=wrap", "validation.every=0", *QKV,
                *(f"stage.{i}.candidates={count}" for i, count in enumerate((*5 * [128], 256))))
        one = losses(self.train(1, *deck))
        loss = self.summary()["final_val_loss"]
        self.moved_aside()
        found, before = {}, None
        with (mock.patch.dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1"), mock.patch.object(harness, "TIMEOUT", 900)):
            for ranks, stop in ((64, 7), (8, 13), (64, 0)):
                job = self.train(ranks, *deck, "comm.ranks_per_node=8", f"stop.step={stop}", code=75 if stop else 0)
                self.assertEqual(restarted_from(job), before)
                found |= losses(job)
                before = stop
        self.assert_close(found, one, 1e-3)
        self.assertAlmostEqual(self.summary()["final_val_loss"], loss, delta=1e-3 * loss)
        self.assertLess(one[STEPS], one[1] - 0.5)


if __name__ == "__main__":
    small_run.main()
