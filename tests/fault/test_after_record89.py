"""Sequences that become shorter again, attention that ends within documents, two momenta, tables that are updated
less often, and narrow Q and K: restarts within each, on the same ranks and on others."""

from harness import losses, restarted_from, small_run
from small_record89 import SMALL, STEPS, Record89FaultTest

AFTER = (
    "train.mlp_precision=working", "stage.1.length=384", "stage.2.length=256", "stage.3.length=128",
    "stage.2.attention_document=50", "stage.3.attention_document=50", "optimizer.slow_momentum=0.98",
    "optimizer.momentum_mix=0.4385", "optimizer.momentum_mix_from=9", "optimizer.orthogonalisation=six_maps",
    "group.2.period=4", "group.2.period_from=6", "model.qk_dims=[4,4,4,8,4,4,0,4,4,4,8]",
    "model.attention_scale_narrow=0.12")


class AfterRecord89(Record89FaultTest):
    def train(self, ranks, *overrides, code=0):
        return super().train(ranks, *AFTER, *overrides, code=code)

    def restarting(self, stops, *overrides):
        """Losses of a run that is stopped after these steps; stops: (step, ranks before it)."""
        found, before = {}, None
        for stop, ranks in stops:
            stops_there = [f"stop.step={stop}"] if stop < STEPS else []
            job = self.train(ranks, *overrides, *stops_there, code=75 if stop < STEPS else 0)
            self.assertEqual(restarted_from(job), before)
            self.assertFalse(found.keys() & losses(job).keys())
            found |= losses(job)
            before = stop
        return found

    def test_stopped_anywhere_is_bit_exact(self):
        """Within a period of four steps and in the shorter stage (14), and in the extension (19); momenta in bf16."""
        whole = losses(self.train(2, "optimizer.muon_moments=bf16"))
        aside = self.moved_aside()
        self.assertEqual(self.restarting([(14, 2), (19, 2), (STEPS, 2)], "optimizer.muon_moments=bf16"), whole)
        self.assert_identical(aside)

    def test_changes_of_ranks(self):
        whole = losses(self.train(1))
        self.moved_aside()
        self.assert_close(self.restarting([(10, 4), (14, 1), (STEPS, 2)]), whole)

    def test_dry_run(self):
        text = self.command("train", "deck.toml", "--dry-run", *SMALL, *AFTER).text()
        for stage, tokens in enumerate((512, 1536, 1024, 512)):
            self.assertRegex(text, rf"stage {stage}, \d+ steps +{tokens} tokens")

    def test_a_slow_momentum_is_refused_later(self):
        self.train(2, "optimizer.slow_momentum=0", "optimizer.momentum_mix=1", "optimizer.momentum_mix_from=0",
                   "stop.step=3", code=75)
        self.assert_refused(self.train(2, code=4), "holds other state of the optimizer",
                            "optimizer.slow_momentum: 0.0 -> 0.98")


if __name__ == "__main__":
    small_run.main()
