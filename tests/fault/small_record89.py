"""A small record 89 from its deck, with all its mechanisms but prefixes, for the tests of several scripts."""

import json
import random
import shutil
from pathlib import Path

from harness import FaultTest, Job, differing_windows, small_run, without_start

DECK = Path(__file__).resolve().parents[2] / "inputs" / "record89.toml"
STEPS = 20  # stages begin at 0, 6, 12 and 18; the update of step 13 unties; Adam updates in every second step
STAGES = [(128, 40, 16, 48), (256, 90, 32, 96), (384, 120, 48, 128), (384, 120, 64, 160)]
SMALL = (
    "run.name=run", "run.log_every=1", "trace.enabled=false", "head.precision=fp32", "model.vocabulary=257", "model.width=48",
    "model.head_dim=8", "model.bigram_rows=97", "model.bigram_sign_rows=16", "model.coefficient_width=8",
    "model.composition_window=24", f"train.steps={STEPS}", "train.extension_steps=2", "train.untie_step=13",
    "train.sequences=4", "optimizer.muon_momentum_steps=5", "optimizer.muon_momentum_cooldown=4",
    'data.train=["short.h5"]', 'data.validation=["data.h5"]', 'data.prefix_table=""', "validation.every=5",
    "validation.tokens=1024", "validation.length=512", "validation.last_long_window=240",
    *(f"stage.{i}.{key}={value}" for i in (0, 1) for key, value in (("prefix", 0), ("prefix_end", 0))),
    *(f"stage.{i}.{key}={value}" for i, values in enumerate(STAGES)
      for key, value in zip(("length", "longest_document", "short_window", "long_window"), values)))


class Record89FaultTest(FaultTest):
    def prepare(self, folder):
        """The deck of the record; data.h5, and short.h5 of documents that fit into a sequence."""
        folder.mkdir(exist_ok=True)
        shutil.copy(DECK, folder / "deck.toml")
        small_run.write_data(folder)
        draw = random.Random(1)
        texts = [f"short_{i:03}.txt" for i in range(600)]
        for text in texts:
            (folder / text).write_text("".join(draw.choices("abc ", k=draw.randint(20, 150))))
        self.assertEqual(Job(folder, 1, ["shard", "short.h5", *texts, "--text"]).wait(), 0)

    def train(self, ranks, *overrides, code=0):
        return super().train(ranks, *SMALL, *overrides, code=code)

    def command(self, *arguments, ranks=None, code=0):
        job = Job(self.folder, ranks, arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def moved_aside(self):
        """The finished run's folder makes room for another run of its name, whose deck is then the same."""
        return self.run_folder().rename(self.folder / "outputs" / "whole")

    def metrics(self, run):
        """Exact figures of steps and validations that do not depend on the time."""
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [{key: line[key] for key in ("step", "loss", "gradient_norm", "validation_loss") if key in line}
                for line in lines]

    def assert_identical(self, whole):
        """The same figures, weights and state of the optimizer as those of a run that was never stopped."""
        self.assertEqual(self.metrics(self.run_folder()), self.metrics(whole))
        a = without_start(self.checkpoint(STEPS))
        b = without_start(whole / "checkpoints" / self.checkpoint(STEPS).name)
        self.assertEqual(len(a), len(b))
        # The attributes train_seconds and, because of it, the checksum of the attributes and HDF5's of the whole block.
        self.assertEqual(differing_windows(a, b), 3)

    def assert_close(self, found, expected, tolerance=1e-5):
        self.assertEqual(sorted(found), list(range(1, STEPS + 1)))
        for step, loss in found.items():
            # They are printed to 1e-5.
            self.assertAlmostEqual(loss, expected[step], delta=tolerance * expected[step] + 1e-5, msg=f"step {step}")
