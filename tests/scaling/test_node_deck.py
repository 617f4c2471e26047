"""What a measurement of a node needs of a deck: short schedules, prefixes, and windows as stages."""

import subprocess
import sys
import tomllib
from pathlib import Path

from support import ROOT, TOOLS, ScalingTest, small_run

RECORD21, RECORD89, FASTEST = (ROOT / "inputs" / f"{name}.toml" for name in ("record21", "record89", "fastest"))


class NodeDeck(ScalingTest):
    def tell(self, *arguments, code=0):
        """Lines that the tool prints; its error with another exit code."""
        job = subprocess.run([sys.executable, "-B", TOOLS / "node" / "deck.py", *map(str, arguments)], text=True,
                             stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(job.returncode, code, job.stderr)
        return job.stderr if code else job.stdout.splitlines()

    def test_facts(self):
        self.assertEqual(self.tell("facts", RECORD89), ["4 1285 10485760 262144"])
        self.assertEqual(self.tell("facts", RECORD21), ["0 1770 10485760 262144"])
        self.assertEqual(self.tell("facts", RECORD21, "--", "train.steps=5", "validation.length=64", "train.steps=7"),
                         ["0 7 10485760 64"])

    def test_schedules(self):
        """The whole one is that of the deck; others untie at the same place, at a step at which Adam updates."""
        for steps, extension, untie, cooldown in ((1285, 15, 847, 50), (642, 7, 425, 25), (60, 4, 37, 2),
                                                  (40, 4, 25, 2), (9, 1, 5, 1)):
            with self.subTest(steps=steps):
                self.assertEqual(self.tell("--steps", steps, "schedule", RECORD89), [
                    f"train.steps={steps}", f"train.extension_steps={extension}", f"train.untie_step={untie}",
                    f"optimizer.muon_momentum_cooldown={cooldown}"])
        self.assertEqual(self.tell("--steps", 40, "schedule", RECORD21), ["train.steps=40"])
        self.assertEqual(self.tell("--steps", 124, "schedule", FASTEST), [
            "train.steps=124", "train.extension_steps=4", "train.untie_step=121",
            "optimizer.muon_momentum_cooldown=5", "optimizer.momentum_mix_from=51", "group.2.period_from=34",
            "average.0.from_last=30", "average.1.from_last=25", "average.2.from_last=30",
            *(f"average.{i}.rate={rate * 1241 / 124}" for i, rate in enumerate((2 / 299, 0.02, 2 / 75)))])

    def test_rates_of_averages_that_are_given_stay(self):
        told = self.tell("--steps", 124, "schedule", FASTEST, "--", "average.1.rate=0.5", "average.2.from_last=62")
        self.assertEqual([line for line in told if line.startswith(("average.1", "average.2.from"))],
                         ["average.1.from_last=25", "average.2.from_last=6"])

    def test_prefixes(self):
        none = self.tell("--data", ".", "prefixes", RECORD89)
        self.assertEqual(none, ['data.prefix_table=""',
                                *(f"stage.{i}.{key}=0" for i in range(4) for key in ("prefix", "prefix_end"))])
        folder = Path('a "b"')
        folder.mkdir()
        (folder / "vocab.bpe").touch()
        self.assertEqual(self.tell("--data", folder, "prefixes", RECORD89),
                         ['data.prefix_table="a \\"b\\"/vocab.bpe"'])
        self.assertEqual(self.tell("prefixes", RECORD89, "--", 'data.prefix_table="mine"'), [])
        self.assertEqual(self.tell("prefixes", RECORD21), [])

    def test_windows(self):
        deck = tomllib.loads("\n".join(self.tell("windows", RECORD21, "--", "train.length=1024")))
        self.assertEqual([(stage["length"], stage["short_window"], stage["long_window"]) for stage in deck["stage"]],
                         [(1024, 128, 128), (1024, 384, 896), (1024, 896, 1792)])
        self.assertEqual(sum(stage["share"] for stage in deck.pop("stage")), 1)
        whole = tomllib.loads(RECORD21.read_text())
        del whole["train"]["length"]
        for key in ("first", "last", "quantum", "rounding"):
            del whole["window"][key]
        self.assertEqual(deck, whole)

    def test_the_program_takes_them(self):
        """The windows of record 21, and records with stages without prefixes; their data are elsewhere."""
        Path("windows.toml").write_text("\n".join(self.tell("windows", RECORD21)))
        for deck, of in (("windows.toml", RECORD21), (RECORD89, RECORD89), (FASTEST, FASTEST)):
            overrides = [*self.tell("prefixes", of), *self.tell("--steps", 40, "schedule", of), "data.train=data.h5",
                         "data.validation=data.h5", "data.end=wrap", "validation.tokens=0"]
            dry = subprocess.run([small_run.PROGRAM, "train", "--dry-run", "--ranks", "8", deck, *overrides], text=True,
                                 stdin=subprocess.DEVNULL, capture_output=True)
            self.assertEqual(dry.returncode, 0, dry.stderr)

    def test_wrong_decks(self):
        for text, message in (("[train", "not TOML"), ("train = 5", "train should be a table"),
                              ('[train]\nsteps = "x"', "train.steps should be an integer"),
                              ("[train]\nsteps = 0", "train.steps should be"), ("stage = 1", "stage should be a list")):
            Path("wrong.toml").write_text(text)
            said = self.tell("facts", "wrong.toml", code=2)
            self.assertEqual(said.count("\n"), 1, said)
            self.assertTrue(said.startswith("deck.py: "), said)
            self.assertIn(message, said)
        said = self.tell("facts", RECORD21, "--", "train.steps=", code=2)
        self.assertIn("train.steps should be a whole number", said)


if __name__ == "__main__":
    small_run.main()
