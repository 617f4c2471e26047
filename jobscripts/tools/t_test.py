"""Student's t tests on the losses of runs, with the distribution of scipy."""

import collections
import math
import statistics

import tool

Difference = collections.namedtuple("Difference", "mean low high p_value")


def distribution():
    return tool.need("scipy", "scipy.stats").t


def standard_error(values):
    return statistics.stdev(values) / math.sqrt(len(values))


def below(values, target):
    """P-value of a one-sided t test: how likely two or more values have so low a mean if their expected value is the
    target."""
    t = distribution()
    error, difference = standard_error(values), statistics.mean(values) - target
    if error == 0:
        return 0.5 if difference == 0 else float(difference > 0)
    return float(t.cdf(difference / error, len(values) - 1))


def interval(values, confidence=0.95):
    """Confidence interval of the expected value, from two or more values."""
    mean, error = statistics.mean(values), standard_error(values)
    reach = error * float(distribution().ppf((1 + confidence) / 2, len(values) - 1))
    return mean - reach, mean + reach


def welch(first, second, confidence=0.95):
    """Welch's two-sided t test of two groups of two or more values each. Returns the difference of the means, first -
    second, its confidence interval, and the p-value: how likely so large a difference is if both have the same expected
    value."""
    t = distribution()
    mean = statistics.mean(first) - statistics.mean(second)
    parts = [standard_error(group) ** 2 for group in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Difference(mean, mean, mean, float(mean == 0))
    # Welch and Satterthwaite. Shares of the squared error, since its square might be too small for a number.
    freedom = 1 / sum((part / sum(parts)) ** 2 / (len(group) - 1) for part, group in zip(parts, (first, second)))
    reach = error * float(t.ppf((1 + confidence) / 2, freedom))
    return Difference(mean, mean - reach, mean + reach, float(2 * t.sf(abs(mean) / error, freedom)))
