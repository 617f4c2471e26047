"""A model of the step time, fitted to measured critical paths, and what it predicts for larger machines.

    step = [ c s + c0 + m M(P) + a E / P ] + (1 - overlap) [ reduce-scatter + all-gather ] + all-reduce

s sequences of a rank; M(P) floating-point operations of Muon on the rank that owns most matrices; E elements that
Adam updates. Each collective takes latency * messages + bytes / bandwidth, counted as src/comm/tensor_comm.hpp exchanges
them: of lookup tables the rows that a rank's tokens may read, of Adam's weights one of adam_period steps. All
coefficients are non-negative; each part is fitted to its own measured time by least squares of relative errors. Where
ranks share cores, every part takes ranks / cores times as long.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "e5m2": 1}  # by comm.gradients
SCALAR_BYTES = 4  # bytes of a learned scalar, on CPUs and on GPUs
NEWTON_SCHULZ_STEPS = 5
NO_OVERLAP = 0.01  # shares below this are the rounding of the clocks

PARTS = ("forward, backward", "fixed work", "Muon", "Adam", "reduce-scatter", "all-gather", "all-reduce")


def newton_schulz_flops(bucket):
    """Floating-point operations of the iteration for one matrix: X Xᵀ, A A and B X in each step."""
    short, long = sorted((bucket.rows, bucket.cols))
    return NEWTON_SCHULZ_STEPS * (4 * short * short * long + 2 * short**3)


def shares(table):
    """The buckets as ranks share them: buckets with matrices of one shape, or its transpose, are joined to one."""
    alike, others = {}, []
    for bucket in table:
        if bucket.rows:
            alike.setdefault(tuple(sorted((bucket.rows, bucket.cols))), []).append(bucket)
        else:
            others.append(bucket)
    return [replace(group[0], units=sum(b.units for b in group)) for group in alike.values()] + others


class Workload:
    """What a step demands of a rank, for any number of ranks. `buckets`: study.plan.Bucket of the model; `gradients`:
    comm.gradients of the deck; `length`: tokens of a sequence, None where unknown; `period`: optimizer.adam_period."""

    def __init__(self, buckets, gradients, on_gpus, length=None, period=1):
        self.buckets = buckets
        self.shares = shares(self.buckets)
        self.length, self.period = length, period
        self.matrices = [b for b in self.shares if b.rows]
        self.gradient_bytes = GRADIENT_BYTES[gradients]
        self.tensor_bytes = 2 if on_gpus else 4
        # What a reduce-scatter receives at a time, and from how many ranks (src/comm/transport.cpp, _devices.cpp, _mpi.cpp).
        self.incoming_bytes, self.peers_at_once = (64 << 20, 8) if on_gpus else (1 << 20, 1)

    def muon_flops(self, ranks):
        """Floating-point operations of Muon on the rank with most matrices."""
        return sum(-(-b.units // ranks) * newton_schulz_flops(b) for b in self.matrices)

    def adam_elements(self, ranks):
        """Elements that Adam updates on the rank with most of them; mean over the steps of a period."""
        return sum(b.largest(ranks) for b in self.buckets if not (b.rows or b.fixed)) / self.period

    def sent(self, table, sequences):
        """The buckets of `table` with as many rows as a rank's sequences may have gradients for. With sequences None:
        all rows."""
        most = sequences * self.length if sequences and self.length else math.inf
        return [replace(b, units=int(min(b.units, most))) if b.lookup else b for b in table if not b.fixed]

    def reduce_scatter(self, ranks, sequences=None):
        """(messages, bytes) that a rank receives: its part of each bucket from every other rank, in pieces."""
        piece = self.incoming_bytes // max(1, min(ranks - 1, self.peers_at_once))
        pieces = sum(-(-self.gradient_bytes * b.largest(ranks) // piece) for b in self.sent(self.buckets, sequences))
        parts = [self.gradient_bytes * b.largest(ranks) for b in self.sent(self.shares, sequences)]
        return (ranks - 1) * pieces, (ranks - 1) * sum(parts)

    def all_gather(self, ranks):
        """(messages, bytes) that a rank sends: its part of each bucket to every other rank. Means over the steps, since
        the weights of Adam travel only in steps in which it updates."""
        def mean(table, what):
            return sum(what(b) / (1 if b.rows else self.period) for b in table if not b.fixed)

        size = mean(self.shares, lambda b: (self.tensor_bytes if b.unit_size > 1 else SCALAR_BYTES) * b.largest(ranks))
        return (ranks - 1) * mean(self.buckets, lambda b: 1), (ranks - 1) * size

    def all_reduce(self, ranks):
        """Messages of an all-reduce by recursive doubling."""
        return (ranks - 1).bit_length()

    def last_muon_split(self):
        """Rank count from which on Muon's work no longer shrinks: each rank has at most one matrix of a shape."""
        return max(b.units for b in self.matrices)


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
    """The network as one collective sees it: seconds per message, seconds per byte."""

    latency: float
    seconds_per_byte: float

    def time(self, messages, size):
        return self.latency * messages + self.seconds_per_byte * size


@dataclass(frozen=True)
class Model:
    """The fitted coefficients of the formula at the head of this file."""

    workload: Workload
    per_sequence: float  # seconds of a sequence
    constant: float  # seconds of a step
    muon: float  # seconds of a floating-point operation
    adam: float  # seconds of an element
    reduce_scatter: Link
    all_gather: Link
    all_reduce: Link
    overlap: float  # share of reduce-scatter and all-gather that runs beside computing; 0 unless traces show some

    def parts(self, ranks, sequences, sharing=1.0):
        """Seconds of each part of a step in which a rank has `sequences`, `sharing` ranks to a core."""
        load = self.workload
        exposed = 1 - self.overlap
        seconds = (self.per_sequence * sequences, self.constant, self.muon * load.muon_flops(ranks),
                   self.adam * load.adam_elements(ranks),
                   exposed * self.reduce_scatter.time(*load.reduce_scatter(ranks, sequences)),
                   exposed * self.all_gather.time(*load.all_gather(ranks)),
                   self.all_reduce.time(load.all_reduce(ranks), 0))
        return {name: sharing * value for name, value in zip(PARTS, seconds)}

    def step(self, ranks, sequences, sharing=1.0):
        """Seconds of a step, the sum of parts()."""
        return sum(self.parts(ranks, sequences, sharing).values())


@dataclass(frozen=True)
class Point:
    """A measured rank count: its critical path (gather.Measurement.path) and the step time, seconds."""

    ranks: int
    sequences: float  # sequences of a rank in a step
    step: float
    path: dict
    sharing: float = 1.0
    overlap: float = 0.0


def fit_overlap(points):
    """Share h of the communication that is hidden: least squares of hidden = h * all. 0 unless the traces show it."""
    hidden, total = [], []
    for p in points:
        exposed = p.path["reduce_gradients"] + p.path["gather_weights"]
        if p.ranks > 1 and p.overlap == p.overlap and p.overlap < 1:
            total.append(exposed / (1 - p.overlap))
            hidden.append(total[-1] - exposed)
    total, hidden = np.array(total), np.array(hidden)
    share = float(hidden @ total / (total @ total)) if total.any() else 0.0
    return share if share > NO_OVERLAP else 0.0


def fit_link(points, phase, exposed, traffic):
    """The Link that fits the times of a phase best. From a single rank count the bandwidth alone is fitted, and the
    latency is 0. `exposed`: share of the communication that computing waits for; `traffic`: point -> (messages,
    bytes)."""
    joined = [p for p in points if p.ranks > 1]
    rows = [[traffic(p)[1], traffic(p)[0]] for p in joined]
    times = [p.path[phase] / p.sharing / exposed for p in joined]
    per_byte, latency = relative_fit(rows, times) if joined else (0.0, 0.0)
    return Link(float(latency), float(per_byte))


def fit(points, workload):
    """The model that fits the points best, part by part."""
    def coefficients(name, row):
        return map(float, relative_fit([row(p) for p in points], [p.path[name] / p.sharing for p in points]))

    overlap = fit_overlap(points)
    per_sequence, constant = coefficients("computing", lambda p: [p.sequences, 1])
    muon, = coefficients("muon", lambda p: [workload.muon_flops(p.ranks)])
    adam, = coefficients("adam", lambda p: [workload.adam_elements(p.ranks)])
    return Model(workload, per_sequence, constant, muon, adam,
                 fit_link(points, "reduce_gradients", 1 - overlap, lambda p: workload.reduce_scatter(p.ranks, p.sequences)),
                 fit_link(points, "gather_weights", 1 - overlap, lambda p: workload.all_gather(p.ranks)),
                 fit_link(points, "sync", 1.0, lambda p: (workload.all_reduce(p.ranks), 0)), overlap)


def leave_one_out(points, workload):
    """For each point the relative error of the step time that the other points predict; empty below two points."""
    if len(points) < 2:
        return []
    errors = []
    for i, p in enumerate(points):
        model = fit(points[:i] + points[i + 1:], workload)
        errors.append(model.step(p.ranks, p.sequences, p.sharing) / p.step - 1)
    return errors


def on_network(model, latency, bandwidth):
    """The model with the network of another machine: seconds per message, bytes per second. A 0 keeps the fitted
    value."""
    def link(fitted):
        return Link(latency or fitted.latency, 1 / bandwidth if bandwidth else fitted.seconds_per_byte)

    return Model(model.workload, model.per_sequence, model.constant, model.muon, model.adam,
                 link(model.reduce_scatter), link(model.all_gather), link(model.all_reduce), model.overlap)


class Forecast:
    """Step times of a model on all rank counts that a study of its kind can have, up to max_ranks."""

    def __init__(self, model, kind, sequences, max_ranks):
        self.model, self.kind, self.sequences = model, kind, sequences
        self.ranks = [n for n in range(1, max_ranks + 1) if kind == "weak" or sequences % n == 0]
        self.parts = [model.parts(n, self.local_sequences(n)) for n in self.ranks]
        self.steps = np.array([sum(parts.values()) for parts in self.parts])

    def local_sequences(self, ranks):
        """Sequences of a rank in a step."""
        return self.sequences / ranks if self.kind == "strong" else self.sequences

    def ideal(self, ranks):
        """The factor by which perfect scaling multiplies the times of one rank."""
        return 1 / ranks if self.kind == "strong" else 1.0

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

    def traffic_exceeds_computing(self):
        """The first rank count at which the transfers of gradients and weights take longer than all computing, or
        None."""
        for n, parts in zip(self.ranks, self.parts):
            traffic = parts["reduce-scatter"] + parts["all-gather"]
            if traffic > parts["forward, backward"] + parts["fixed work"] + parts["Muon"] + parts["Adam"]:
                return n
        return None
