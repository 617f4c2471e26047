"""A model of the step time, fitted to measured critical paths, and what it predicts for larger machines.

    step = [ c s + m M + a E ] [ 1 + v z(P) ] + c0 + (1 - overlap) [ inside + between ] + l ceil(log2 P)

s sequences of a rank; M floating-point operations of Muon and E elements of Adam on the busiest rank; v the relative
standard deviation of the time that ranks take for the same work, z(P) the expected largest of P standard normal numbers:
all ranks wait for the slowest. `inside` and `between` are what gradients and weights take inside nodes and between them,
each latency * messages + bytes / bandwidth; the last term is an all-reduce among P ranks. M, E, messages and bytes are
those that the program plans (study/plan.py). All coefficients are non-negative and fitted by least squares of relative
errors, each part to its own measured time. Where ranks share cores, every part takes ranks / cores times as long.
"""

import itertools
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

NO_OVERLAP = 0.01  # shares below this are the rounding of the clocks

PARTS = ("forward, backward", "fixed work", "Muon", "Adam", "slower ranks", "inside nodes", "between nodes",
         "all-reduce")
WORK = PARTS[:4]
TRANSFERS = ("inside nodes", "between nodes")


def non_negative_least_squares(columns, target):
    """Coefficients x >= 0 that minimise |columns x - target|: the best of the solutions on all subsets of columns, and
    among equals the one with the fewest columns. Meant for a handful of columns."""
    columns, target = np.asarray(columns, float), np.asarray(target, float)
    scale = np.abs(columns).max(axis=0, initial=0)
    usable = [j for j in range(columns.shape[1]) if scale[j] > 0]
    best, least = np.zeros(columns.shape[1]), float(target @ target)
    tolerance = 1e-12 * least
    for count in range(1, len(usable) + 1):
        for subset in itertools.combinations(usable, count):
            scaled = columns[:, subset] / scale[list(subset)]
            x, _, rank, _ = np.linalg.lstsq(scaled, target, rcond=None)
            error = float(np.sum((scaled @ x - target) ** 2))
            if rank == count and x.min() >= 0 and error < least - tolerance:
                best, least = np.zeros(columns.shape[1]), error
                best[list(subset)] = x / scale[list(subset)]
    return best


def relative_fit(rows, times):
    """Non-negative coefficients x that minimise the relative errors of rows x against `times`. Rows whose time is zero
    are left out."""
    rows, times = np.asarray(rows, float), np.asarray(times, float)
    kept = times > 0
    return non_negative_least_squares(rows[kept] / times[kept, None], np.ones(kept.sum()))


@dataclass(frozen=True)
class Link:
    """What carries tensors: seconds per message, seconds per byte."""

    latency: float
    seconds_per_byte: float

    def time(self, traffic):
        return self.latency * traffic.messages + self.seconds_per_byte * traffic.bytes


@dataclass(frozen=True)
class Model:
    """The fitted coefficients of the formula at the head of this file."""

    per_sequence: float  # seconds of a sequence
    constant: float  # seconds of a step
    muon: float  # seconds of a floating-point operation
    adam: float  # seconds of an element
    spread: float  # relative standard deviation of the time of ranks with the same work
    inside: Link
    between: Link  # None: no point has several nodes
    all_reduce: float  # seconds of a round
    overlap: float  # share of the transfers that runs beside computing; 0 unless traces show some

    def parts(self, plan, sequences, sharing=1.0):
        """Seconds of each part of a step of this plan (study.plan.Plan) in which a rank has `sequences`, `sharing`
        ranks to a core. While nothing is known of what connects nodes, it counts as what connects ranks in them."""
        exposed = 1 - self.overlap
        own = self.per_sequence * sequences, self.muon * plan.muon, self.adam * plan.adam
        forward, muon, adam = own
        seconds = (forward, self.constant, muon, adam, self.spread * slowest(plan.ranks) * sum(own),
                   exposed * self.inside.time(plan.inside), exposed * (self.between or self.inside).time(plan.between),
                   self.all_reduce * rounds(plan.ranks))
        return {name: sharing * value for name, value in zip(PARTS, seconds)}

    def step(self, plan, sequences, sharing=1.0):
        """Seconds of a step, the sum of parts()."""
        return sum(self.parts(plan, sequences, sharing).values())

    def on_network(self, latency, bandwidth):
        """The model with another network between nodes: seconds per message, bytes per second. A 0 keeps the fitted
        value; None stays where it is all that is known."""
        if not (self.between or (latency and bandwidth)):
            return self
        fitted = self.between or Link(0.0, 0.0)
        return replace(self, between=Link(latency or fitted.latency,
                                          1 / bandwidth if bandwidth else fitted.seconds_per_byte))


def rounds(ranks):
    """Messages of an all-reduce by recursive doubling, one after the other."""
    return (ranks - 1).bit_length()


def slowest(ranks):
    """The expected largest of so many standard normal numbers, 0 for one. G. Blom, Statistical Estimates and
    Transformed Beta-Variables, 1958; within 5 % of the integral."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


@dataclass(frozen=True)
class Point:
    """A measured run: its plan, its critical path (gather.Measurement.path) and the step time, seconds."""

    plan: object
    sequences: float  # sequences of a rank in a step
    step: float
    path: dict
    mean_computing: float  # over the ranks, where path["computing"] is that of the slowest one
    sharing: float = 1.0
    overlap: float = 0.0
    between: float = float("nan")  # share of the transfers between nodes; nan or 0 where the trace does not tell

    @property
    def ranks(self):
        return self.plan.ranks

    @property
    def exposed(self):
        """Seconds of the transfers for which computing waits."""
        return self.path["reduce_gradients"] + self.path["gather_weights"]


def mean_of_repeats(points):
    """A point for each rank count, of mean times: each rank count weighs as much, however many repeats it has."""
    groups = {}
    for p in points:
        groups.setdefault(p.ranks, []).append(p)

    def mean(values):
        return float(np.mean(list(values)))

    return [replace(group[0], step=mean(p.step for p in group), overlap=mean(p.overlap for p in group),
                    mean_computing=mean(p.mean_computing for p in group), between=mean(p.between for p in group),
                    path={name: mean(p.path[name] for p in group) for name in group[0].path})
            for group in groups.values()]


def fit_overlap(points):
    """Share h of the communication that is hidden: least squares of hidden = h * all. 0 unless the traces show it."""
    hidden, total = [], []
    for p in points:
        if p.ranks > 1 and p.overlap == p.overlap and p.overlap < 1:
            total.append(p.exposed / (1 - p.overlap))
            hidden.append(total[-1] - p.exposed)
    total, hidden = np.array(total), np.array(hidden)
    share = float(hidden @ total / (total @ total)) if total.any() else 0.0
    return share if share > NO_OVERLAP else 0.0


def fit_or_zeros(rows, times):
    """relative_fit() as a list; without rows nothing takes time."""
    return list(map(float, relative_fit(rows, times))) if rows else [0.0, 0.0]


def fit_links(points, overlap):
    """The links inside nodes and between them that fit the transfers of the points best, each its own time where the
    traces tell both apart. Where few points tell latency and bandwidth apart, one of them is 0. The second link is None
    where no point has several nodes."""
    joined = [p for p in points if p.ranks > 1]
    times = [p.exposed / p.sharing / (1 - overlap) for p in joined]
    rows = [[size for level in (p.plan.inside, p.plan.between) for size in (level.bytes, level.messages)]
            for p in joined]
    several = [p for p in joined if p.plan.nodes > 1]
    if not several:
        x = fit_or_zeros([row[:2] for row in rows], times) + [0.0, 0.0]
    elif all(p.between > 0 for p in several):
        shares = [p.between if p.plan.nodes > 1 else 0.0 for p in joined]
        x = (fit_or_zeros([row[:2] for row in rows], [t * (1 - share) for t, share in zip(times, shares)])
             + fit_or_zeros([row[2:] for row in rows], [t * share for t, share in zip(times, shares)]))
    else:
        x = fit_or_zeros(rows, times)
    return Link(x[1], x[0]), Link(x[3], x[2]) if several else None


def fit_computing(points):
    """`per_sequence`, `constant` and `spread` of a Model: the mean rank takes c s + c0, the slowest one c v z(P) s
    more."""
    rows = [[p.sequences, 1, 0] for p in points] + [[p.sequences, 1, slowest(p.ranks) * p.sequences] for p in points]
    times = [p.mean_computing / p.sharing for p in points] + [p.path["computing"] / p.sharing for p in points]
    per_sequence, constant, excess = map(float, relative_fit(rows, times))
    return per_sequence, constant, excess / per_sequence if per_sequence else 0.0


def fit(points):
    """The model that fits the points best, part by part. A rank count may have several points: its repeats."""
    points = mean_of_repeats(points)

    def coefficient(name, amount):
        return float(relative_fit([[amount(p)] for p in points], [p.path[name] / p.sharing for p in points])[0])

    overlap = fit_overlap(points)
    per_sequence, constant, spread = fit_computing(points)
    muon = coefficient("muon", lambda p: p.plan.muon * (1 + spread * slowest(p.ranks)))
    adam = coefficient("adam", lambda p: p.plan.adam * (1 + spread * slowest(p.ranks)))
    all_reduce = coefficient("sync", lambda p: rounds(p.ranks))
    return Model(per_sequence, constant, muon, adam, spread, *fit_links(points, overlap), all_reduce, overlap)


def errors_of(points, repeats, fitted_ranks=0):
    """For each point, by ascending rank count, the relative error of the step time that other rank counts predict: up to
    `fitted_ranks` (0: all) the others of these, beyond it all of these. The model is fitted to all `repeats`. Empty
    where fewer than two rank counts are fitted."""
    fitted = [p for p in repeats if not fitted_ranks or p.ranks <= fitted_ranks]
    if len({p.ranks for p in fitted}) < 2:
        return []
    errors = []
    for p in points:
        model = fit([other for other in fitted if other.ranks != p.ranks])
        errors.append(model.step(p.plan, p.sequences, p.sharing) / p.step - 1)
    return errors


class Forecast:
    """Step times of a model for plans, by ascending rank count; `sequences` as Study.sequences."""

    def __init__(self, model, kind, sequences, plans):
        self.model, self.kind, self.sequences, self.plans = model, kind, sequences, plans
        self.ranks = [plan.ranks for plan in plans]
        self.parts = [model.parts(plan, self.local_sequences(plan.ranks)) for plan in plans]
        self.steps = np.array([sum(parts.values()) for parts in self.parts])

    def local_sequences(self, ranks):
        """Sequences of a rank in a step."""
        return self.sequences / ranks if self.kind == "strong" else self.sequences

    def ideal(self, ranks):
        """The factor by which perfect scaling multiplies the times of the fewest ranks."""
        return self.ranks[0] / ranks if self.kind == "strong" else 1.0

    @property
    def efficiency(self):
        """Efficiency at each of self.ranks, 1.0 for perfect scaling."""
        return np.array([self.steps[0] * self.ideal(n) / step for n, step in zip(self.ranks, self.steps)])

    def first_below(self, level):
        """Index of the first rank count whose efficiency is below `level`, or None."""
        below = np.flatnonzero(self.efficiency < level)
        return int(below[0]) if len(below) else None

    def losses(self, i):
        """Seconds by which each part exceeds perfect scaling, largest first."""
        ideal = self.ideal(self.ranks[i])
        lost = {name: seconds - ideal * self.parts[0][name] for name, seconds in self.parts[i].items()}
        return sorted(lost.items(), key=lambda item: -item[1])

    def first_idle(self):
        """The first plan in which some ranks own no matrix of some shape, or None."""
        return next((plan for plan in self.plans if plan.idle), None)

    def traffic_exceeds_computing(self):
        """The first rank count at which the transfers of gradients and weights take longer than all computing, or
        None."""
        for n, parts in zip(self.ranks, self.parts):
            traffic = sum(parts[name] for name in TRANSFERS)
            if traffic > sum(parts[name] for name in WORK):
                return n
        return None
