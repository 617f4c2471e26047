"""The statistics of jobscripts/tools/ensemble.py, and the runs that it takes."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "jobscripts" / "tools"))
import ensemble  # noqa: E402

# Quantiles of Student's t distribution from any statistical table: degrees of freedom, P(T <= t), t.
QUANTILES = [(1, 0.95, 6.313752), (2, 0.975, 4.302653), (3, 0.99, 4.540703), (4, 0.9, 1.533206), (7, 0.995, 3.499483),
             (10, 0.99, 2.763769), (30, 0.95, 1.697261)]


class Ensemble(unittest.TestCase):
    def test_t_distribution(self):
        for degrees, probability, t in QUANTILES:
            self.assertAlmostEqual(ensemble.t_cdf(t, degrees), probability, delta=1e-7)
            self.assertAlmostEqual(ensemble.t_cdf(-t, degrees), 1 - probability, delta=1e-7)
        self.assertEqual(ensemble.t_cdf(0, 5), 0.5)

    def test_p_value_says_how_surely_the_mean_is_below_the_target(self):
        losses = [3.2, 3.3, 3.4]  # mean 3.3, standard error 0.1 / sqrt(3)
        t = 2.919986 * 0.1 / 3**0.5  # 0.95 quantile for 2 degrees of freedom
        self.assertAlmostEqual(ensemble.p_value(losses, 3.3 + t), 0.05, delta=1e-7)
        self.assertAlmostEqual(ensemble.p_value(losses, 3.3 - t), 0.95, delta=1e-7)

    def test_equal_losses(self):
        self.assertEqual([ensemble.p_value([3.25, 3.25], target) for target in (3.0, 3.25, 3.5)], [1, 0.5, 0])


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
            json.dumps({"finished": True, "steps": 9, "final_train_loss": loss, "final_val_loss": loss}))
        return path

    def read(self, *folders):
        """Seeds and validation losses of the runs, and what is said about the others."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            runs = ensemble.read_runs(folders)
        return [(run[0], run[3]) for run in runs], said.getvalue()

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


if __name__ == "__main__":
    unittest.main()
