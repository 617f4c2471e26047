"""The studies of plain GPTs in inputs/studies/, cut down and run on one and two ranks of CPUs to their reports."""

import csv
import re
import shutil
import tomllib

from support import ROOT, ScalingTest, small_run

STEPS, ROW, LENGTH = 6, 128, 512
CUTS = {"ranks": [1, 2], "steps": STEPS, "warmup": 2, "repeats": 1}
SMALL = ("model.vocabulary=257", "model.width=64", "model.heads=4", "model.head_dim=16", "model.layers=4",
         f"window.first={ROW}", f"window.last={ROW}", f"data.row_length={ROW}", f"train.length={LENGTH}")


class GptStudies(ScalingTest):
    def setUp(self):
        """The study finds its deck, and the deck its shards, by the paths that they ship with."""
        super().setUp()
        for name in ("studies", "gpt2"):
            shutil.copytree(ROOT / "inputs" / name, self.folder / "inputs" / name)
        small_run.write_data(self.folder)
        (self.folder / "data").mkdir()
        (self.folder / "data.h5").rename(self.folder / "data" / "edu_fineweb_train_000001.h5")

    def cut(self, name):
        """The shipped study with fewer ranks, steps and repeats, and a smaller model."""
        path = self.folder / "inputs" / "studies" / f"{name}.toml"
        lines = "".join(f'  "{key}",\n' for key in SMALL)
        cuts = [(rf"^{key} = [^#\n]*", f"{key} = {value} ") for key, value in CUTS.items()]
        text = path.read_text()
        for pattern, cut in [*cuts, (r"^overrides = \[\n", rf"\g<0>{lines}")]:
            text, count = re.subn(pattern, cut, text, flags=re.MULTILINE)
            self.assertEqual(count, 1, pattern)
        path.write_text(text)
        return path

    def run_study(self, name):
        """Its rows in runs.csv, and the losses of the steps by numbers of ranks."""
        said = self.script(self.cut(name), "--program", small_run.PROGRAM)
        self.assertIn("[2/2] ranks2_repeat1: done", said)
        self.assertIn(f"outputs/{name}/report.html", said)
        folder = self.folder / "outputs" / name
        self.check_report((folder / "report.html").read_text(), name)
        with open(folder / "runs.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["ranks"], row["repeat"]) for row in rows], [("1", "1"), ("2", "1")])
        return rows, {ranks: self.losses(folder / f"ranks{ranks}_repeat1", ranks) for ranks in CUTS["ranks"]}

    def check_report(self, report, name):
        kind = name.partition("_")[2]
        self.assertIn(f"<h1>Scaling study {name}</h1>", report)
        self.assertIn(f"{name}: {kind} scaling", report)
        self.assertIn("All runs of the study have finished.", report)

    def losses(self, folder, ranks):
        """Of a run that trained the deck's model on so many ranks, and learned."""
        import h5py

        deck = tomllib.loads((folder / "deck.toml").read_text())
        self.assertEqual((deck["model"]["residual"], deck["model"]["width"]), ("plain", 64))
        self.assertEqual(deck["optimizer"]["matrix_rule"], "adam")
        with h5py.File(folder / "trace.h5") as file:
            self.assertEqual(list(file["ranks"]), STEPS * [ranks])
            losses = list(file["loss"])
        self.assertLess(losses[-1], losses[0] - 0.3)
        return losses

    def test_strong(self):
        """Ranks add up the same gradients in another order, so that losses differ by rounding: by less than 1e-9 of
        their value. A learning rate 1 % higher moves them by 2e-4, and the tolerance leaves room for another BLAS."""
        rows, losses = self.run_study("gpt2_strong")
        self.assertEqual([int(row["tokens"]) for row in rows], [8 * LENGTH, 8 * LENGTH])
        for one, two in zip(losses[1], losses[2], strict=True):
            self.assertLess(abs(two - one), 1e-6 * one)

    def test_weak(self):
        """Two ranks train on twice the tokens, so that their losses are others."""
        rows, losses = self.run_study("gpt2_weak")
        self.assertEqual([int(row["tokens"]) for row in rows], [LENGTH, 2 * LENGTH])
        self.assertGreater(abs(losses[2][0] - losses[1][0]), 1e-6 * losses[1][0])


if __name__ == "__main__":
    small_run.main()
