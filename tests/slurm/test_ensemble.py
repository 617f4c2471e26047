"""The statistics of jobscripts/ensemble.py."""

import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "jobscripts"))
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


if __name__ == "__main__":
    unittest.main()
