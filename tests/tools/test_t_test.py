"""The t tests of jobscripts/tools against formulas written out, with a t distribution that is integrated here."""

import math
import unittest

from support import small_run

import t_test

# Quantiles of Student's t distribution from any statistical table: degrees of freedom, P(T <= t), t.
QUANTILES = [(1, 0.95, 6.313752), (2, 0.975, 4.302653), (3, 0.99, 4.540703), (4, 0.9, 1.533206), (7, 0.995, 3.499483)]


def central(t, freedom, steps=20000):
    """P(|T| <= t) by Simpson's rule."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def density(x):
        return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    h = t / steps
    inner = sum((4 if i % 2 else 2) * density(i * h) for i in range(1, steps))
    return 2 * h / 3 * (density(0) + inner + density(t))


class OneGroup(unittest.TestCase):
    def test_p_value_says_how_surely_the_mean_is_below_the_target(self):
        losses = [3.2, 3.3, 3.4]  # mean 3.3, standard error 0.1 / sqrt(3)
        t = 2.919986 * 0.1 / 3**0.5  # 0.95 quantile for 2 degrees of freedom
        self.assertAlmostEqual(t_test.below(losses, 3.3 + t), 0.05, delta=1e-7)
        self.assertAlmostEqual(t_test.below(losses, 3.3 - t), 0.95, delta=1e-7)

    def test_all_degrees_of_freedom_of_a_table(self):
        for freedom, probability, t in QUANTILES:
            values = [0.0] * freedom + [1.0]
            n = freedom + 1
            error = math.sqrt((freedom / n**2 + (1 - 1 / n) ** 2) / freedom / n)  # written out: mean 1 / n
            self.assertAlmostEqual(t_test.below(values, 1 / n - t * error), probability, delta=1e-6)
            self.assertAlmostEqual(t_test.below(values, 1 / n + t * error), 1 - probability, delta=1e-6)

    def test_equal_losses(self):
        self.assertEqual([t_test.below([3.25, 3.25], target) for target in (3.0, 3.25, 3.5)], [1, 0.5, 0])
        self.assertEqual(t_test.interval([3.25, 3.25]), (3.25, 3.25))

    def test_interval(self):
        low, high = t_test.interval([3.2, 3.3, 3.4])
        self.assertAlmostEqual(low, 3.3 - 4.302653 * 0.1 / 3**0.5, delta=1e-6)
        self.assertAlmostEqual(high, 3.3 + 4.302653 * 0.1 / 3**0.5, delta=1e-6)


class Welch(unittest.TestCase):
    FIRST = [3.281, 3.279, 3.284, 3.276]  # mean 3.28, sum of squares 34e-6
    SECOND = [3.290, 3.270, 3.305]  # mean 3.288333, sum of squares 616.666667e-6

    def test_two_groups(self):
        first, second = 34e-6 / 3 / 4, 616.6666666667e-6 / 2 / 3  # squared standard errors
        t = (3.28 - 3.2883333333333) / math.sqrt(first + second)
        freedom = (first + second) ** 2 / (first**2 / 3 + second**2 / 2)
        found = t_test.welch(self.FIRST, self.SECOND)
        self.assertAlmostEqual(found.mean, -0.0083333333, delta=1e-9)
        self.assertAlmostEqual(found.p_value, 1 - central(abs(t), freedom), delta=1e-8)
        self.assertAlmostEqual((found.low + found.high) / 2, found.mean, delta=1e-12)
        reach = (found.high - found.low) / 2 / math.sqrt(first + second)
        self.assertAlmostEqual(central(reach, freedom), 0.95, delta=1e-8)
        swapped = t_test.welch(self.SECOND, self.FIRST)
        self.assertAlmostEqual(swapped.p_value, found.p_value, delta=1e-15)
        self.assertAlmostEqual(swapped.low, -found.high, delta=1e-15)

    def test_groups_without_spread(self):
        self.assertEqual(t_test.welch([3.25, 3.25], [3.25, 3.25]), (0, 0, 0, 1))
        self.assertEqual(t_test.welch([3.5, 3.5], [3.25, 3.25]), (0.25, 0.25, 0.25, 0))
        found = t_test.welch([3.5, 3.5], [3.25, 3.35])  # one degree of freedom: Cauchy's distribution
        self.assertAlmostEqual(found.p_value, 1 - 2 / math.pi * math.atan(0.2 / 0.05), delta=1e-9)


if __name__ == "__main__":
    small_run.main()
