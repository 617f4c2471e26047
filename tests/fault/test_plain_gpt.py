"""A small plain GPT from its deck trains with AdamW alike on any ranks, continues, and is used by the other commands."""

import re
import shutil
from pathlib import Path

from harness import FaultTest, Job, losses, restarted_from, small_run

DECK = Path(__file__).resolve().parents[2] / "inputs" / "gpt2" / "124m.toml"
SMALL = (
    "run.name=run", "run.log_every=1", "trace.enabled=false", "model.vocabulary=257", "model.width=32", "model.heads=2",
    "model.head_dim=16", "model.layers=3", "train.steps=12", "train.sequences=4", "train.length=256", "train.warmup=3",
    "train.cooldown=0.75", "validation.every=4", "validation.tokens=1024", "validation.length=256", "data.row_length=128",
    "window.first=128", "window.last=128", "group.0.lr=0.01", "optimizer.lr_scalar=0.01", 'data.train=["data.h5"]',
    'data.validation=["data.h5"]')


class PlainGptFaultTest(FaultTest):
    def prepare(self, folder):
        folder.mkdir(exist_ok=True)
        shutil.copy(DECK, folder / "deck.toml")
        small_run.write_data(folder)

    def train(self, ranks, *overrides, folder=None, code=0):
        return super().train(ranks, *SMALL, *overrides, folder=folder, code=code)

    def command(self, *arguments, code=0):
        job = Job(self.folder, None, arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job

    def test_ranks_and_restarts_change_nothing(self):
        whole = self.folder / "whole"
        self.prepare(whole)
        expected = losses(self.train(1, folder=whole))
        self.assertLess(expected[12], expected[1] - 0.5)
        first = losses(self.train(4, "comm.ranks_per_node=2", "stop.step=5", code=75))
        second = self.train(2)
        self.assertEqual(restarted_from(second), 5)
        for step, loss in (first | losses(second)).items():
            self.assertAlmostEqual(loss, expected[step], delta=2e-5 * expected[step])
        self.assertAlmostEqual(self.summary()["final_val_loss"] / self.summary(whole)["final_val_loss"], 1, delta=1e-5)

    def test_gradients_in_bf16(self):
        """They leave nothing from one step to the next, so a run that is cut goes on with the same bits."""
        rounded = "optimizer.matrix_gradients=bf16"
        whole = self.folder / "whole"
        self.prepare(whole)
        wide = losses(self.train(2, "run.name=wide", folder=whole))
        expected = losses(self.train(2, rounded, folder=whole))
        self.assertEqual(expected[1], wide[1])
        self.assertNotEqual(expected, wide)
        self.assertAlmostEqual(expected[12] / wide[12], 1, delta=0.01)
        first = losses(self.train(2, rounded, "stop.step=5", code=75))
        second = self.train(2, rounded)
        self.assertEqual(restarted_from(second), 5)
        self.assertEqual(first | losses(second), expected)

    def test_without_gains_and_biases_there_are_no_scalars(self):
        bare = ("model.norm_gains=false", "model.biases=false", "data.packing=stream")
        whole = self.folder / "whole"
        self.prepare(whole)
        expected = losses(self.train(1, *bare, folder=whole))
        got = losses(self.train(3, *bare, "train.sequences=3", "stop.step=2", code=75))
        self.assertEqual(sorted(got), [1, 2])
        got = losses(self.train(2, *bare, "checkpoint.restart=none"))
        for step, loss in got.items():
            self.assertAlmostEqual(loss, expected[step], delta=2e-5 * expected[step])

    def test_other_commands_use_it(self):
        self.train(2)
        checkpoint = self.checkpoint(12)
        self.verify(checkpoint)
        job = self.command("eval", checkpoint)
        loss = float(re.search(r"^loss +(\S+)", "".join(job.output), re.MULTILINE)[1])
        self.assertAlmostEqual(loss / self.summary()["final_val_loss"], 1, delta=1e-6)
        self.command("sample", checkpoint, "--tokens", "5", "--prompt", "ab")
        self.command("export", checkpoint, "model")
        self.command("import", "model", "back.h5")
        settings = "--data", "data.h5", "--tokens", "1024", "--length", "256"
        lines = [[line for line in self.command("eval", file, *settings).output if line.startswith("loss ")]
                 for file in ("back.h5", checkpoint)]
        self.assertEqual(lines[0], lines[1])
        self.assertTrue(lines[0])

    def test_eval_reads_whole_rows(self):
        """A run without validation may leave a length of which eval asks for another."""
        self.train(1, "train.steps=3", "data.row_length=256", "validation.tokens=0", "validation.length=384")
        asked = "eval", self.checkpoint(3), "--tokens", 1536
        for length, arguments in ((384, ()), (384, ("--length", 384)), (128, ("--length", 128))):
            said = self.command(*asked, *arguments, code=2).text().strip().splitlines()
            self.assertEqual(said, [f"nanorun: the length {length} of a sequence is not a multiple of data.row_length = "
                                    f"256 of {self.checkpoint(3)}: change --length"])
        self.command(*asked, "--length", 512)


if __name__ == "__main__":
    small_run.main()
