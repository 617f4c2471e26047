"""A model of the step time, fitted to measured critical paths, and what it predicts for larger machines.

    step = [ c s + c0 + m M + a E ] + (1 - overlap) [ inside + between ] + l ceil(log2 P)

s sequences of a rank; M floating-point operations of Muon and E elements of Adam on the busiest rank; `inside` and
`between` what gradients and weights take inside nodes and between them, each latency * messages + bytes / bandwidth; the
last term is an all-reduce among P ranks. M, E, messages and bytes are those that the program plans (study/plan.py). All
coefficients are non-negative and fitted by least squares of relative errors, each part to its own measured time. Where
ranks share cores, every part takes ranks / cores times as long.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np

NO_OVERLAP = 0.01  # shares below this are the rounding of the clocks

PARTS = ("forward, backward", "fixed work", "Muon", "Adam", "inside nodes", "between nodes", "all-reduce")
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
    inside: Link
    between: Link  # None: no point has several nodes
    all_reduce: float  # seconds of a round
    overlap: float  # share of the transfers that runs beside computing; 0 unless traces show some

    def parts(self, plan, sequences, sharing=1.0):
        """Seconds of each part of a step of this plan (study.plan.Plan) in which a rank has `sequences`, `sharing`
        ranks to a core. While nothing is known of what connects nodes, it counts as what connects ranks in them."""
        exposed = 1 - self.overlap
        seconds = (self.per_sequence * sequences, self.constant, self.muon * plan.muon, self.adam * plan.adam,
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


@dataclass(frozen=True)
class Point:
    """A measured rank count: its plan, its critical path (gather.Measurement.path) and the step time, seconds."""

    plan: object
    sequences: float  # sequences of a rank in a step
    step: float
    path: dict
    sharing: float = 1.0
    overlap: float = 0.0
    between: float = float("nan")  # share of the transfers between nodes; nan where the trace does not tell

    @property
    def ranks(self):
        return self.plan.ranks

    @property
    def exposed(self):
        """Seconds of the transfers for which computing waits."""
        return self.path["reduce_gradients"] + self.path["gather_weights"]


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
    several = any(p.plan.nodes > 1 for p in joined)
    if not several:
        x = fit_or_zeros([row[:2] for row in rows], times) + [0.0, 0.0]
    elif all(p.between == p.between for p in joined):
        x = (fit_or_zeros([row[:2] for row in rows], [t * (1 - p.between) for t, p in zip(times, joined)])
             + fit_or_zeros([row[2:] for row in rows], [t * p.between for t, p in zip(times, joined)]))
    else:
        x = fit_or_zeros(rows, times)
    return Link(x[1], x[0]), Link(x[3], x[2]) if several else None


def fit(points):
    """The model that fits the points best, part by part."""
    def coefficients(name, row):
        return map(float, relative_fit([row(p) for p in points], [p.path[name] / p.sharing for p in points]))

    overlap = fit_overlap(points)
    per_sequence, constant = coefficients("computing", lambda p: [p.sequences, 1])
    muon, = coefficients("muon", lambda p: [p.plan.muon])
    adam, = coefficients("adam", lambda p: [p.plan.adam])
    all_reduce, = coefficients("sync", lambda p: [rounds(p.ranks)])
    return Model(per_sequence, constant, muon, adam, *fit_links(points, overlap), all_reduce, overlap)


def leave_one_out(points):
    """For each point the relative error of the step time that the other points predict; empty below two points."""
    if len(points) < 2:
        return []
    errors = []
    for i, p in enumerate(points):
        model = fit(points[:i] + points[i + 1:])
        errors.append(model.step(p.plan, p.sequences, p.sharing) / p.step - 1)
    return errors


def errors_of(points, fitted_ranks=0):
    """For each point, by ascending rank count, the relative error of the step time that others predict: up to
    `fitted_ranks` (0: all) the others of these, beyond it all of these. Empty where fewer than two are fitted."""
    fitted = [p for p in points if not fitted_ranks or p.ranks <= fitted_ranks]
    if len(fitted) < 2:
        return []
    model = fit(fitted)
    return leave_one_out(fitted) + [model.step(p.plan, p.sequences, p.sharing) / p.step - 1
                                    for p in points[len(fitted):]]


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
            if traffic > parts["forward, backward"] + parts["fixed work"] + parts["Muon"] + parts["Adam"]:
                return n
        return None
