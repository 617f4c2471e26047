"""The runs that jobscripts/tools/ensemble.py takes, and the table that it prints of them."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "jobscripts" / "tools"))
import ensemble  # noqa: E402

class Runs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write_run(self, folder, name, seed, loss):
        path = self.folder / folder
        path.mkdir()
        (path / "deck.toml").write_text(f'[run]\nname = "{name}"\nseed = {seed}\n')
        (path / "summary.json").write_text(
            json.dumps({"finished": True, "steps": 9, "final_train_loss": loss, "final_val_loss": loss,
                        "train_seconds": 4.5}))
        return path

    def read(self, *folders):
        """Seeds and validation losses of the runs, and what is said about the others."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            runs = ensemble.read_runs(folders)
        return [(run.seed, run.validation_loss) for run in runs], said.getvalue()

    def test_earlier_runs_of_a_name_are_left_out(self):
        run = self.write_run("a_1", "a_1", 1, 3.0)
        copies = [self.write_run(f"a_1.{i}", "a_1", 1, 4.0) for i in (1, 12)]
        own_name = self.write_run("a.1", "a.1", 2, 5.0)
        runs, said = self.read(run, *copies, own_name)
        self.assertEqual(runs, [(1, 3.0), (2, 5.0)])
        self.assertEqual(said.splitlines(),
                         [f"left out: {copy} is an earlier run of the name a_1" for copy in copies])

    def test_a_folder_that_is_named_twice_counts_once(self):
        run = self.write_run("a", "a", 1, 3.0)
        (self.folder / "link").symlink_to("a")
        self.assertEqual(self.read(run, run / ".." / "a", self.folder / "link"), ([(1, 3.0)], ""))

    def test_runs_of_one_seed_are_no_sample(self):
        runs, said = self.read(self.write_run("a", "a", 1, 3.0), self.write_run("b", "b", 1, 3.5),
                               self.write_run("c", "c", 2, 4.0))
        self.assertEqual(runs, [(1, 3.0), (1, 3.5), (2, 4.0)])
        self.assertEqual(said, "warning: 2 runs have the seed 1; the p-value takes runs for independent\n")

    def test_table(self):
        """The losses 3.2, 3.3 and 3.4 lie 0.1 / sqrt(3) 0.95 quantiles below the target."""
        runs = [ensemble.Sample(seed, 9, loss + 0.01, loss, 100 * seed)
                for seed, loss in ((1, 3.2), (2, 3.3), (3, 3.4))]
        text = ensemble.table(runs, 3.3 + 2.919986 * 0.1 / 3**0.5)
        self.assertEqual(text.splitlines()[4:6], ["     mean                  3.31000          3.30000      200.00 s",
                                                  "deviation                  0.10000          0.10000      100.00 s"])
        self.assertRegex(text, r"\np-value for a mean validation loss below 3\.46859: 0\.05 \(one-sided t test, 3 runs\)$")
        self.assertNotIn("deviation", ensemble.table(runs[:1], 3.28))


if __name__ == "__main__":
    unittest.main()
