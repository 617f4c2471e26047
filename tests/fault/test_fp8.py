"""Operands in 8 bits in both passes, on a small record 89: restarts, other rank counts, what the log says."""

import re

from harness import losses, restarted_from, small_run
from small_record89 import STEPS, Record89FaultTest

QKV = ("fp8.qkv.forward=e4m3", "fp8.qkv.gradient=e4m3", "fp8.qkv.scales=fixed", "fp8.qkv.scale_g=0.00223")
FP8 = ("train.mlp_precision=working", "fp8.mlp.forward=e4m3", "fp8.mlp.gradient=e5m2", "fp8.mlp.scales=delayed",
       "fp8.mlp.weight_scales=delayed", "fp8.mlp.scale_g=0.015625", "fp8.mlp.margin=1.03", *QKV)


class Fp8(Record89FaultTest):
    def test_stopped_anywhere_is_bit_exact(self):
        """In the first step, where stages begin, and around step 16, from which on weights have delayed scales."""
        whole = losses(self.train(2, *FP8))
        self.assertLess(whole[STEPS], whole[1] - 0.5)
        aside = self.moved_aside()
        found, stops = {}, (1, 6, 13, 16, 17, 18)
        for before, stop in zip((None, *stops), (*stops, 0)):
            job = self.train(2, *FP8, *([f"stop.step={stop}"] if stop else []), code=75 if stop else 0)
            self.assertEqual(restarted_from(job), before)
            found |= losses(job)
        self.assertEqual(found, whole)
        self.assert_identical(aside)

    def test_ranks_change(self):
        """Last bits, which the order of sums decides, may round to other 8-bit values."""
        found = {}
        for ranks, stop in ((2, 5), (1, 17), (4, 0)):
            found |= losses(self.train(ranks, "run.name=changing", f"stop.step={stop}", *FP8, code=75 if stop else 0))
        self.assert_close(found, losses(self.train(1, *FP8)), 2e-3)

    def test_rules_change(self):
        """A checkpoint of other rules is continued; the log says what changed."""
        self.train(2, "stop.step=3", code=75)
        job = self.train(2, *FP8, "stop.step=5", code=75)
        self.assertEqual(restarted_from(job), 3)
        self.assertIn('fp8.mlp.forward: "working" -> "e4m3"', job.text())
        job = self.train(1, *FP8[:2], "fp8.mlp.gradient=e4m3", "stop.step=7", code=75)
        self.assertEqual(restarted_from(job), 5)
        self.assertIn('fp8.mlp.gradient: "e5m2" -> "e4m3"', job.text())
        job = self.train(1)
        self.assertEqual(restarted_from(job), 7)
        self.assertIn('train.mlp_precision: "working" -> "fp8"', job.text())
        self.verify(self.checkpoint(7), self.checkpoint(STEPS))

    def test_log(self):
        """The shares of what saturates come with each progress line, of all steps since the one before."""
        text = self.train(2, *FP8, "run.log_every=5").text()
        self.assertIn(", MLP in fp8, QKV in fp8", text)
        share = r"[0-9][0-9.e+-]*"
        mlp = re.findall(rf"^step +(\d+): saturated in fp8, MLP: input {share}, weights {share}, hidden units {share}, "
                         rf"gradient of the output {share}, gradient of hidden units {share}$", text, re.MULTILINE)
        qkv = re.findall(rf"^step +(\d+): saturated in fp8, QKV: input 0, weights {share}, gradient of the output {share}"
                         rf", gradient of values {share}$", text, re.MULTILINE)
        self.assertEqual(mlp, ["1", "5", "10", "15", "20"])
        self.assertEqual(qkv, mlp)
        tiny = self.train(1, *FP8, "run.name=tiny", "fp8.qkv.scale_g=1e-12", "train.steps=20", "stop.step=1", code=75).text()
        values = re.search(r"QKV: .*gradient of values ([0-9.e+-]+)$", tiny, re.MULTILINE)
        self.assertGreater(float(values[1]), 0.5)


if __name__ == "__main__":
    small_run.main()
