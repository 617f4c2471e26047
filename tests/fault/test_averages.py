"""Averages of weights: the last validation and whoever reads the finished model see them, training does not."""

import json
import re
import struct

from harness import FaultTest, Job, losses, restarted_from, small_run

AVERAGES = """
[[average]]
tensors = ["head", "*.qkv.v", "value_embedding.*"]
from_last = 6
rate = 0.25
blend = 0.65
[[average]]
tensors = ["*"]
from_last = 8
every = 3
rate = 0.3
blend = 0.5
"""

BF16 = """
[[group]]
tensors = ["head", "value_embedding.*"]
lr = 0.01
master = "bf16"
"""

VALIDATION = ("--data", "data.h5", "--tokens", "1024", "--length", "256")


class Averages(FaultTest):
    def add_averages(self, folder=None):
        deck = (folder or self.folder) / "deck.toml"
        deck.write_text(deck.read_text() + AVERAGES)

    def evaluate(self, checkpoint, ranks=None, arguments=()):
        job = Job(self.folder, ranks, ["eval", checkpoint, *arguments])
        self.assertEqual(job.wait(), 0, job.text())
        return float(re.search(r"^loss +(\S+)", job.text(), re.MULTILINE)[1])

    def exported(self, checkpoint, name):
        """The tensors of an exported model, as bytes."""
        job = Job(self.folder, None, ["export", checkpoint, name])
        self.assertEqual(job.wait(), 0, job.text())
        data = (self.folder / name / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        tensors = {tensor: value["data_offsets"] for tensor, value in json.loads(data[8:8 + size]).items()
                   if tensor != "__metadata__"}
        return {tensor: data[8 + size + begin:8 + size + end] for tensor, (begin, end) in tensors.items()}

    def test_readers_of_the_finished_model_see_them(self):
        plain = self.folder / "plain"
        self.prepare(plain)
        self.add_averages()
        without = self.train(2, "checkpoint.every=6", folder=plain)
        job = self.train(2, "checkpoint.every=6")
        self.assertEqual(losses(job), losses(without), "averages leave the training as it is")
        loss = self.summary()["final_val_loss"]
        self.assertNotEqual(loss, self.summary(plain)["final_val_loss"])
        self.assertEqual(self.evaluate(self.checkpoint(12)), loss)
        self.assertEqual(self.evaluate(self.checkpoint(12), 3), loss)
        self.assertEqual(self.evaluate(self.checkpoint(6)), self.evaluate(self.checkpoint(6, plain)))
        ours, theirs = self.exported(self.checkpoint(12), "ours"), self.exported(self.checkpoint(12, plain), "theirs")
        self.assertTrue(all(ours[tensor] != theirs[tensor] for tensor in ours if not tensor.startswith("skip")))
        job = self.train(2, "run.name=next", f"checkpoint.weights={self.checkpoint(12)}", "train.steps=8",
                         "validation.every=8", "window.first=256")
        first = float(re.search(r"validation at step 0/8: loss (\S+)", job.text())[1])
        self.assertAlmostEqual(first, loss, 4)

    def test_readers_round_masters_in_bf16(self):
        """eval, export and checkpoint.weights have one model, to the last bit, where Adam keeps tensors in bf16."""
        self.add_averages()
        deck = self.folder / "deck.toml"
        deck.write_text(deck.read_text() + BF16)
        for masters in ("fp32", "bf16"):  # of the tensors without a group
            with self.subTest(masters):
                self.check_readers(f"run_{masters}", f"optimizer.adam_master={masters}")

    def check_readers(self, run, masters):
        self.train(2, f"run.name={run}", masters)
        folder = self.folder / "outputs" / run
        loss = json.loads((folder / "summary.json").read_text())["final_val_loss"]
        checkpoint, imported = folder / "checkpoints/checkpoint_00000012.h5", f"{run}.h5"
        head = self.exported(checkpoint, f"exported_{run}")["head"]
        self.assertFalse(any(head[::4] + head[1::4]), "no numbers of bf16")
        job = Job(self.folder, None, ["import", f"exported_{run}", imported])
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(self.evaluate(checkpoint), loss)
        self.assertEqual(self.evaluate(imported, arguments=VALIDATION), loss)
        figures = [self.figures_from(weights, f"{run}_{i}", masters) for i, weights in enumerate((checkpoint, imported))]
        self.assertEqual(figures[0][0], (0, loss))
        self.assertEqual(figures[0], figures[1])

    def figures_from(self, weights, run, masters):
        """Steps and exact losses of a run that begins with the weights; its first validation is of these."""
        self.train(4, f"run.name={run}", f"checkpoint.weights={weights}", "train.steps=8", "validation.every=8",
                   "window.first=256", masters)
        lines = map(json.loads, (self.folder / "outputs" / run / "metrics.jsonl").read_text().splitlines())
        return [(line["step"], line[key]) for line in lines for key in ("loss", "validation_loss") if key in line]

    def test_restart_in_the_window(self):
        self.add_averages()
        whole = self.folder / "whole"
        self.prepare(whole)
        self.add_averages(whole)
        uninterrupted = self.train(2, folder=whole)
        for ranks, places in ((2, 15), (1, 4)):
            first = self.train(2, "stop.step=8", "checkpoint.restart=none", code=75)
            second = self.train(ranks)
            self.assertEqual(restarted_from(second), 8)
            self.assertAlmostEqual(self.summary()["final_val_loss"], self.summary(whole)["final_val_loss"], places)
            if ranks == 2:
                self.assertEqual(losses(first) | losses(second), losses(uninterrupted))

    def test_more_steps_go_on_from_the_weights_before(self):
        plain = self.folder / "plain"
        self.prepare(plain)
        self.add_averages()
        for folder in (plain, None):
            self.train(2, folder=folder)
        without, job = self.train(2, "train.steps=15", folder=plain), self.train(2, "train.steps=15")
        self.assertEqual(restarted_from(job), 12)
        self.assertEqual(sorted(losses(job)), [13, 14, 15])
        self.assertEqual(losses(job), losses(without))
        self.assertEqual(self.evaluate(self.checkpoint(15)), self.summary()["final_val_loss"])

    def test_added_later_are_refused(self):
        self.train(2, "stop.step=3", code=75)
        self.add_averages()
        self.assert_refused(self.train(2, code=4), "holds other state of the optimizer", "average.0: none -> {tensors")


if __name__ == "__main__":
    small_run.main()
