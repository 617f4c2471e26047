"""Restarted runs continue as if they had never stopped."""

import json

from harness import FaultTest, Job, differing_windows, losses, restarted_from, small_run, without_start

MODEL_WITH_GATES = """
residual = "scaled"
value_path = "none"
smear = true
gated_layers = [0, 1, 2]
"""
# By Muon in every step, while Adam updates other scalars in every other one.
GATES_BY_MUON = """
[optimizer]
adam_period = 2
normuon_beta = 0.9
outer_every = 4
[[group]]
tensors = ["*_gate"]
lr = 0.05
rule = "muon"
moments = "bf16"
"""
# Of 384 columns of the LM head.
CANDIDATES = """
[[stage]]
share = 0.75
length = 256
short_window = 128
long_window = 128
candidates = 128
[[stage]]
share = 0.25
length = 256
short_window = 128
long_window = 256
candidates = 256
"""


class Restart(FaultTest):
    def compare_runs(self, first_ranks, second_ranks):
        """Interrupts a run at step 6, continues it, and returns both final losses and jobs of whole and parts."""
        whole = self.folder / "whole"
        self.prepare(whole)
        (whole / "deck.toml").write_text((self.folder / "deck.toml").read_text())
        uninterrupted = self.train(first_ranks, folder=whole)
        first = self.train(first_ranks, "stop.step=6", code=75)
        second = self.train(second_ranks)
        self.assertEqual(restarted_from(second), 6)
        self.assertEqual(sorted(losses(first) | losses(second)), list(range(1, 13)))
        self.assertFalse(losses(first).keys() & losses(second).keys())
        return whole, uninterrupted, losses(first) | losses(second)

    def test_same_ranks_is_bit_exact(self):
        whole, uninterrupted, parts = self.compare_runs(2, 2)
        self.assertEqual(parts, losses(uninterrupted))
        for key in ("final_train_loss", "final_val_loss", "tokens", "steps"):
            self.assertEqual(self.summary()[key], self.summary(whole)[key], key)
        a, b = without_start(self.checkpoint(12)), without_start(self.checkpoint(12, whole))
        self.assertEqual(len(a), len(b))
        # The attributes train_seconds and, because of it, the checksum of the attributes and HDF5's of the whole block.
        self.assertEqual(differing_windows(a, b), 3)

    def assert_close(self, whole, uninterrupted, parts):
        expected = losses(uninterrupted)
        for step, loss in parts.items():
            self.assertAlmostEqual(loss, expected[step], delta=1e-5 * expected[step] + 1e-5)  # printed to 1e-5
        for key in ("final_train_loss", "final_val_loss"):
            self.assertAlmostEqual(self.summary()[key] / self.summary(whole)[key], 1, delta=1e-5)

    def test_two_ranks_to_one(self):
        self.assert_close(*self.compare_runs(2, 1))

    def test_one_rank_to_four(self):
        self.assert_close(*self.compare_runs(1, 4))

    def use_gates_by_muon(self):
        """And an outer step, in whose period the run is interrupted."""
        gated = small_run.DECK.replace("value_embeddings = 1", MODEL_WITH_GATES)
        (self.folder / "deck.toml").write_text(gated + GATES_BY_MUON)

    def test_gates_by_muon_and_outer_steps(self):
        self.use_gates_by_muon()
        whole, uninterrupted, parts = self.compare_runs(2, 2)
        self.assertEqual(parts, losses(uninterrupted))
        self.assertEqual(self.summary()["final_val_loss"], self.summary(whole)["final_val_loss"])

    def test_gates_by_muon_and_outer_steps_on_one_rank_and_four(self):
        self.use_gates_by_muon()
        self.assert_close(*self.compare_runs(1, 4))

    def use_candidates(self):
        deck = small_run.DECK.replace("length = 256\n[validation]", "[validation]")
        deck = deck.replace("[window]\nfirst = 128\nlast = 256\n", "")
        (self.folder / "deck.toml").write_text(deck + CANDIDATES)

    def test_candidates_of_the_head(self):
        self.use_candidates()
        whole, uninterrupted, parts = self.compare_runs(2, 2)
        self.assertIn("training loss: over a part of the vocabulary alone in stages 0, 1\n", uninterrupted.text())
        self.assertEqual(parts, losses(uninterrupted))
        self.assertEqual(self.summary()["final_val_loss"], self.summary(whole)["final_val_loss"])

    def test_candidates_of_the_head_on_one_rank_and_four(self):
        self.use_candidates()
        self.assert_close(*self.compare_runs(1, 4))

    def train_tied(self, name, *overrides, code=0, ranks=2):
        """A model whose embedding has as many rows as its LM head, tied or not."""
        return self.train(ranks, f"run.name={name}", "model.vocabulary=384", "trace.enabled=false", *overrides, code=code)

    def final_loss(self, name):
        return self.summary_of(name)["final_val_loss"]

    def summary_of(self, name):
        return json.loads((self.folder / "outputs" / name / "summary.json").read_text())

    def test_parted_head_and_embedding_stay_parted(self):
        """A restart refuses to make the embedding a copy of the head again, in all ways in which a deck may say so."""
        untied = ("model.tied_head=true", "train.untie_step=5")
        for name, deck, changes in (
                ("untied", untied, (("train.untie_step=9",), ("train.untie_step=0",), ("train.untie_step=7",))),
                ("never", ("model.tied_head=false",), (("model.tied_head=true",), ("model.tied_head=true", "train.untie_step=9"))),
                ("begun", ("model.tied_head=true", "train.untie_step=-1"), (("train.untie_step=0",),))):
            first = self.train_tied(name, *deck, "stop.step=7", code=75)
            for change in changes:
                job = self.train_tied(name, *deck, *change, code=4)
                self.assert_refused(job, "checkpoint_00000007.h5: its embedding is no copy of its head, and the run's next")
                planned = self.train_tied(name, *deck, *change, "--dry-run", ranks=1)
                self.assertRegex(planned.text(), "warning: .*: its embedding is no copy of its head")
            rest = self.train_tied(name, *deck)
            self.assertEqual(restarted_from(rest), 7)
            whole = self.train_tied(f"{name}_whole", *deck)
            self.assertEqual(losses(first) | losses(rest), losses(whole), "a refusal changes nothing")

    def test_untie_step_that_is_past(self):
        """It changes nothing whether it stays past, or the head and the embedding still are alike."""
        tied = "model.tied_head=true"
        whole = self.train_tied("whole", tied, "train.untie_step=5")
        for stop, first_untied, then in ((7, 5, 3), (7, 5, -1), (6, 9, 5), (6, 0, -1), (6, 5, 5)):
            name = f"from_{first_untied}_to_{then}"
            first = self.train_tied(name, tied, f"train.untie_step={first_untied}", f"stop.step={stop}", code=75)
            rest = self.train_tied(name, tied, f"train.untie_step={then}")
            self.assertEqual(restarted_from(rest), stop)
            self.assertEqual(losses(first) | losses(rest), losses(whole), name)
            self.assertEqual(self.final_loss(name), self.final_loss("whole"), name)
            parts = "LM head and embedding part here" in rest.text()
            self.assertEqual(parts, first_untied in (0, 9), name)
        # Within a period of Adam: its gradients wait, of the head and of the embedding.
        period = ("optimizer.adam_period=2", tied)
        whole = losses(self.train_tied("whole_period", *period, "train.untie_step=5"))
        first = self.train_tied("period", *period, "train.untie_step=9", "stop.step=7", code=75)
        rest = self.train_tied("period", *period, "train.untie_step=5")
        self.assertEqual(losses(first) | losses(rest), whole)
        self.train_tied("released", tied, "stop.step=6", code=75)
        self.train_tied("released", "model.tied_head=false")
        self.assertEqual(self.final_loss("released"), self.final_loss("whole"))

    def test_untie_step_moves_on_while_tied(self):
        tied = "model.tied_head=true"
        whole = losses(self.train_tied("whole", tied, "train.untie_step=9"))
        for untie in (3, 0, 5):  # the update of step 3 is the last before the checkpoint
            name = f"moved_{untie}"
            first = self.train_tied(name, tied, f"train.untie_step={untie}", f"stop.step={untie + 1 if untie else 4}",
                                    code=75)
            rest = self.train_tied(name, tied, "train.untie_step=9")
            self.assertEqual(losses(first) | losses(rest), whole, name)

    def use_candidates_of_a_tied_head(self):
        """And periods of four steps, in one of which the run is interrupted."""
        self.use_candidates()
        deck = (self.folder / "deck.toml").read_text().replace("layers = 4\n", "layers = 4\ntied_head = true\n")
        (self.folder / "deck.toml").write_text(deck + "[optimizer]\nadam_period = 4\n")

    def test_candidates_of_a_tied_head(self):
        self.use_candidates_of_a_tied_head()
        _, uninterrupted, parts = self.compare_runs(2, 2)
        self.assertEqual(parts, losses(uninterrupted))

    def test_candidates_of_a_tied_head_on_four_ranks_and_two(self):
        """In the last stage rows of the head travel between four ranks, the whole head between two."""
        self.use_candidates_of_a_tied_head()
        self.assert_close(*self.compare_runs(4, 2))

    def test_more_targets_than_candidates(self):
        self.use_candidates()
        text = "".join(chr(32 + i * 61 % 95) + chr(128 + i * 619 % 1900) for i in range(5000))
        (self.folder / "many.txt").write_text(text, encoding="utf-8")
        self.assertEqual(Job(self.folder, None, ["shard", "data.h5", "many.txt", "--text", "--force"]).wait(), 0)
        job = self.train(2, code=2)
        self.assertRegex(job.text(), r"a sequence of step 1 has 1\d\d different targets, more than stage\.0\."
                                     r"candidates = 128; raise that key")

    def test_another_deck_is_noted(self):
        self.train(2, "stop.step=3", code=75)
        same = self.train(2, "stop.step=6", "run.log_every=2", "trace.enabled=false", code=75)
        self.assertEqual(restarted_from(same), 3)
        self.assertNotIn("changed since the checkpoint", same.text())
        job = self.train(2, "train.steps=8", "optimizer.muon_lr=0.1", "train.length=128", "comm.gradients=bf16")
        for said in ("".join(job.output), (self.run_folder() / "log.txt").read_text()):
            lines = [line for line in said.splitlines() if "changed since the checkpoint" in line]
            self.assertEqual(lines, [
                "changed since the checkpoint: train.steps: 12 -> 8; optimizer.muon_lr: 0.05 -> 0.1; "
                'comm.gradients: "fp32" -> "bf16"',
                "warning: changed since the checkpoint, so that this is no longer the same training: "
                "train.length: 256 -> 128"])

    def test_restart_none_starts_anew_and_keeps_the_old_folder(self):
        self.train(2, "train.steps=3")
        again = self.train(2, "train.steps=3", "checkpoint.restart=none")
        self.assertIsNone(restarted_from(again))
        self.assertEqual(sorted(losses(again)), [1, 2, 3])
        self.assertTrue((self.folder / "outputs" / "run.1" / "checkpoints" / "checkpoint_00000003.h5").exists())


if __name__ == "__main__":
    small_run.main()
