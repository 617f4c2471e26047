"""A small record 89 from its deck, with all its mechanisms but prefixes: ranks, restarts, the finished model."""

import json
import re
import shutil
import sys
from pathlib import Path

from harness import losses, restarted_from, small_run
from small_record89 import DECK, SMALL, STEPS, Record89FaultTest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
sys.path.append(str(Path(__file__).resolve().parents[2] / "jobscripts" / "tools"))


class Record89(Record89FaultTest):
    def changing_ranks(self, *overrides):
        found = {}
        for ranks, stop in ((2, 5), (1, 14), (4, 0)):
            found |= losses(self.train(ranks, "run.name=changing", f"stop.step={stop}", *overrides,
                                       code=75 if stop else 0))
        return found

    def test_all_ranks_and_changes_of_them(self):
        """Losses agree through all stages and the untying, also where the ranks change on the way."""
        fp32 = "train.mlp_precision=working"
        whole = losses(self.train(1, fp32))
        self.assertLess(whole[STEPS], whole[1] - 0.5)
        for ranks in (2, 4):
            self.assert_close(losses(self.train(ranks, f"run.name=ranks{ranks}", fp32)), whole)
        self.assert_close(self.changing_ranks(fp32), whole)

    def test_what_the_training_loss_and_the_tokens_are(self):
        """The first two stages of 6 steps have several targets. A step has 4 sequences of its stage's length."""
        import runs

        job = self.train(1, "stop.step=14", code=75)
        self.assertIn("training loss: a weighted sum over several targets in stages 0, 1\n", job.text())
        named = re.findall(r"^step +(\d+)/20  (weighted )?loss ", job.text(), re.MULTILINE)
        self.assertEqual(named, [(str(step), "weighted " if step <= 12 else "") for step in range(1, 15)])
        path = self.run_folder() / "metrics.jsonl"
        steps = [line for line in map(json.loads, path.read_text().splitlines()) if "loss" in line]
        self.assertEqual([step.get("loss_weights") for step in steps[::6]], [1.75, 1.5, None])
        tokens = 4 * (6 * 128 + 6 * 256 + 2 * 384)
        self.assertEqual((steps[-1]["tokens"], self.summary()["tokens"]), (tokens, tokens))
        found = runs.read_run(self.run_folder())
        self.assertEqual([(v.step, v.tokens) for v in found.validations], [(0, 0), (5, 4 * 5 * 128),
                                                                            (10, 4 * (6 * 128 + 4 * 256))])
        # Earlier programs wrote them so, without totals.
        path.write_text("".join(json.dumps({key: line[key] for key in line if key != "tokens"}) + "\n"
                                for line in map(json.loads, path.read_text().splitlines())))
        self.assertEqual([v.tokens for v in runs.read_run(self.run_folder()).validations],
                         [v.tokens for v in found.validations])

    def test_changes_of_ranks_with_the_mlp_in_fp8(self):
        """Last bits, which the order of sums decides, may round to other 8-bit values."""
        self.assert_close(self.changing_ranks(), losses(self.train(1)), 1e-3)

    def test_the_precision_of_the_mlp_changes(self):
        """A checkpoint without the maxima of FP8 is continued with FP8, and one with them without."""
        self.train(2, "train.mlp_precision=working", "stop.step=17", code=75)
        job = self.train(2, "stop.step=18", code=75)
        self.assertEqual(restarted_from(job), 17)
        self.assertIn('changed since the checkpoint: train.mlp_precision: "working" -> "fp8"\n', job.output)
        job = self.train(1, "train.mlp_precision=working")
        self.assertEqual(restarted_from(job), 18)
        self.assertIn('changed since the checkpoint: train.mlp_precision: "fp8" -> "working"\n', job.output)
        self.verify(self.checkpoint(18), self.checkpoint(STEPS))

    def test_record81(self):
        """The earlier record from its deck: other mechanisms, the same stages; two ranks, then four."""
        shutil.copy(DECK.with_name("record81.toml"), self.folder / "deck.toml")
        own = ("model.bigram_columns=24", "model.composition_window=112")  # no layer composes heads
        whole = losses(self.train(1, *own))
        self.assertLess(whole[STEPS], whole[1] - 0.5)
        found = {}
        for ranks, stop in ((2, 15), (4, 0)):
            found |= losses(self.train(ranks, "run.name=changing", *own, f"stop.step={stop}", code=75 if stop else 0))
        self.assert_close(found, whole)

    def test_stopped_anywhere_is_bit_exact(self):
        """Within a period of Adam, where stages begin, around the untying, and in the extension."""
        whole = losses(self.train(2))
        aside = self.moved_aside()
        found, stops = {}, (3, 6, 13, 14, 15, 19)
        for before, stop in zip((None, *stops), (*stops, 0)):
            job = self.train(2, *([f"stop.step={stop}"] if stop else []), code=75 if stop else 0)
            self.assertEqual(restarted_from(job), before)
            self.assertFalse(found.keys() & losses(job).keys())
            found |= losses(job)
        self.assertEqual(found, whole)
        self.assert_identical(aside)

    def test_killed_is_bit_exact(self):
        whole = losses(self.train(2, "checkpoint.every=1"))
        aside = self.moved_aside()
        job = self.start(2, *SMALL, "checkpoint.every=1")
        job.until_step(9)
        job.kill()
        again = self.train(2, "checkpoint.every=1")
        self.assertIsNotNone(restarted_from(again))
        self.assertEqual(losses(job) | losses(again), whole)
        self.assert_identical(aside)

    def test_finished_model(self):
        """Evaluated as the run's last validation, with its window; sampled from; the beginning of another run."""
        self.train(2)
        checkpoint, loss = self.checkpoint(STEPS), self.summary()["final_val_loss"]
        for ranks in (None, 3):
            said = self.command("eval", checkpoint, ranks=ranks).output
            self.assertIn("window 240\n", said[0])
            self.assertIn(f"loss           {loss} nats per token\n", said)
        text = "".join(self.command("sample", checkpoint, "--prompt", "abc", "--tokens", 20, "--top-k", 3).output)
        self.assertRegex(text, r"\Aabc[abc ]+\n\Z")
        begun = self.train(2, "run.name=begun", f"checkpoint.weights={checkpoint}", "train.untie_step=-1",
                           "stop.step=2", code=75)
        self.assertIn(f"begins with the weights of {checkpoint}, step {STEPS}\n", begun.output)

    def test_untied_weights_are_not_tied_again(self):
        """A model whose head and embedding have parted begins no run that makes them one; another goes on with both."""
        def refused(weights):
            job = self.train(4, "run.name=tied", f"checkpoint.weights={weights}", "stop.step=1", code=4)
            self.assert_refused(job, f"{weights}: its embedding is no copy of its head", "train.untie_step = -1")

        self.train(2, "stop.step=13", code=75)
        tied = f"checkpoint.weights={self.checkpoint(13)}"
        self.train(2, "run.name=begun", tied, "stop.step=1", code=75)
        self.train(2)
        refused(self.checkpoint(STEPS))
        self.train(2, "run.name=parted", tied, "train.untie_step=-1", "stop.step=2", code=75)
        refused(self.folder / "outputs/parted/checkpoints/checkpoint_00000002.h5")

    def test_questions(self):
        """Each ending has a sequence of its own, whatever the length and the number of ranks."""
        self.train(1, "stop.step=2", "model.vocabulary=500", code=75)
        questions = GOLDEN / "hellaswag.bin"
        asked = ["eval", self.checkpoint(2), "--hellaswag", questions, "--end-of-text", 499]
        said = self.command(*asked).output
        self.assertIn("12 questions of", said[0])
        self.assertEqual(self.command(*asked, "--length", 2048, ranks=3).output, said)

    def test_wrong_decks(self):
        for override, keys in (("train.untie_step=12", ("train.untie_step", "optimizer.adam_period = 2")),
                               ("stage.1.share=0.5", ("stage.0.share to stage.3.share", "add up to 1"))):
            self.assert_refused(self.train(2, override, code=2), *keys)
        self.assertFalse((self.folder / "outputs").exists())


if __name__ == "__main__":
    small_run.main()
