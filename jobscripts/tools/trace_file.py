"""trace.h5 of a run: its steps, whose times the ranks have measured by phase, and its validations.

A column of a step is a rank or, on many ranks, a group of ranks: then it holds their mean, and quantiles beside it.
"""

import os
import time

import tool

COMMUNICATION = {"reduce_gradients", "gather_weights", "sync"}
OCCASIONAL = {"validation", "checkpoint", "output"}
# With their dimensions.
DATASETS = {"step": 1, "ranks": 1, "tokens": 1, "loss": 1, "seconds": 3, "communication": 2, "validation_step": 1,
            "validation_loss": 1}
LATER_DATASETS = {"communication_between": 2}  # read as zeros where an earlier program has written the trace
GROUP_DATASETS = {"group_ranks": 2, "quantiles": 4, "slowest": 3}  # absent where all columns are ranks
QUANTILES = 5  # least, quartiles, most
# Sums of phases of which groups have quantiles too, by the phases that they leave out.
SUMS = {"step": {"validation", "checkpoint"}}
SUMS["work"] = SUMS["step"] | COMMUNICATION
SUMS["computing"] = SUMS["work"] | {"muon", "adam"}
EARLIER_NAMES = {"agree": "sync"}  # names of phases in traces of earlier programs
# Least and most of what a dataset may hold; losses may be no numbers too.
BOUNDS = {"step": (0, 2**53), "validation_step": (0, 2**53), "tokens": (1, 1e15), "seconds": (0, 1e9),
          "communication": (0, 1e12), "communication_between": (0, 1e12)}
MAX_LOSS = 1e30


def open_for_reading(path):
    """Opens an HDF5 file. Waits while a run writes it; takes no lock where the file system has none."""
    import h5py

    for _ in range(60):
        try:
            return h5py.File(path, "r")
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            if tool.has_locks(path):
                raise
            return h5py.File(path, "r", locking=False)
    raise tool.ToolError(f"{path}: another program has it open for writing")


def read_datasets(path):
    """The datasets of a trace.h5 as arrays, and its phases. Throws ToolError."""
    import h5py
    import numpy as np

    tool.require_regular(path)
    with tool.using(path, KeyError, RuntimeError, TypeError, ValueError, AttributeError, kind="a trace"):
        with open_for_reading(path) as file:
            size = os.path.getsize(path)
            present = DATASETS | {name: axes for name, axes in LATER_DATASETS.items() if name in file}
            if "group_ranks" in file:
                present |= GROUP_DATASETS
            for name, dimensions in present.items():
                if not isinstance(file[name], h5py.Dataset) or file[name].ndim != dimensions:
                    raise ValueError(f"/{name} is no dataset of {dimensions} dimensions")
                # Where no data are stored HDF5 would make them up, of whatever size a damaged file gives.
                if file[name].dtype.kind not in "iuf" or int(file[name].size) * file[name].dtype.itemsize > size:
                    raise ValueError(f"/{name} cannot be of that type and shape")
            trace = {name: file[name][...] for name in present}
            trace.setdefault("communication_between", np.zeros_like(trace["communication"]))
            trace["first_step"] = int(file.attrs["first_step"]) if "first_step" in file.attrs else None
            trace["quantities"] = names_of(file, "quantities") if "group_ranks" in file else []
            trace["provenance"] = text_of(file, "provenance") if "provenance" in file.attrs else "{}"
            return trace, names_of(file, "phases")


def text_of(file, attribute):
    text = file.attrs[attribute]
    return text.decode() if isinstance(text, bytes) else text


def names_of(file, attribute):
    return [EARLIER_NAMES.get(name, name) for name in text_of(file, attribute).split(",")]


def cut(trace):
    """Leaves out rows that are not complete: /step is written last."""
    for steps, names in (("step", ("ranks", "tokens", "loss", "seconds", "communication", "communication_between",
                                   *GROUP_DATASETS)),
                         ("validation_step", ("validation_loss",))):
        for name in names:
            if name in trace:
                trace[name] = trace[name][:len(trace[steps])]


def fault(trace, phases):
    """What is impossible in a trace, or None."""
    import numpy as np

    steps, columns = len(trace["step"]), trace["seconds"].shape[1]
    if not COMMUNICATION | OCCASIONAL | {"data", "forward", "other"} <= set(phases) or len(set(phases)) < len(phases):
        return "the phases are those of another program"
    shapes = dict.fromkeys(("step", "ranks", "tokens", "loss"), (steps,))
    shapes |= {"seconds": (steps, columns, len(phases)), "communication": (steps, columns),
               "communication_between": (steps, columns), "validation_step": trace["validation_loss"].shape}
    for name, shape in shapes.items():
        if trace[name].shape != shape:
            return f"/{name} has not the length of the others"
    most_ranks = columns if "group_ranks" not in trace else 2**31
    for name, (least, most) in (BOUNDS | {"ranks": (1, most_ranks)}).items():
        if not np.all((trace[name] >= least) & (trace[name] <= most)):
            return f"/{name} holds what cannot be"
    for name in ("loss", "validation_loss"):
        if np.any(np.isfinite(trace[name]) & (np.abs(trace[name]) > MAX_LOSS)):
            return f"/{name} holds what cannot be"
    if np.any(np.diff(trace["step"]) <= 0):
        return "/step does not ascend"
    if steps and not np.any(trace["seconds"]):
        return "/seconds holds no time"
    return fault_of_groups(trace, phases) if "group_ranks" in trace else None


def fault_of_groups(trace, phases):
    """What is impossible in what a trace says of groups of ranks, or None."""
    import numpy as np

    (steps, groups), names = trace["group_ranks"].shape, trace["quantities"]
    if names != [*phases, "communication", "communication_between", *SUMS]:
        return "the quantities are those of another program"
    shapes = {"group_ranks": (len(trace["step"]), min(groups, trace["seconds"].shape[1])),
              "quantiles": (steps, groups, len(names), QUANTILES), "slowest": (steps, groups, len(names))}
    for name, shape in shapes.items():
        if trace[name].shape != shape:
            return f"/{name} has not the shape of the others"
    grouped = trace["group_ranks"].any(axis=1)
    counts = np.where(grouped, trace["group_ranks"].sum(axis=1), np.minimum(trace["ranks"], trace["seconds"].shape[1]))
    if np.any(trace["group_ranks"] < 0) or np.any(counts != trace["ranks"]):
        return "/group_ranks holds what cannot be"
    for name, most in (("quantiles", BOUNDS["communication"][1]), ("slowest", trace["ranks"].max(initial=1) - 1)):
        if not np.all((trace[name] >= 0) & (trace[name] <= most)):
            return f"/{name} holds what cannot be"
    return None


def read_trace(path):
    """The datasets of a trace.h5, /seconds masked where a column has no rank in a step; its phases; `ranks_of` [steps,
    columns], the number of ranks of each column; `grouped` [steps], whether columns are groups. Throws ToolError."""
    import numpy as np

    trace, phases = tool.read_apart(read_datasets, path)
    cut(trace)
    wrong = fault(trace, phases)
    if wrong:
        raise tool.ToolError(f"{path}: not a trace: {wrong}")
    trace["phases"] = phases
    columns = np.arange(trace["seconds"].shape[1])
    trace["ranks_of"] = (columns[None, :] < trace["ranks"][:, None]).astype(int)
    trace["grouped"] = np.zeros(len(trace["step"]), bool)
    if "group_ranks" in trace:
        groups = np.zeros_like(trace["ranks_of"])
        groups[:, :trace["group_ranks"].shape[1]] = trace["group_ranks"]
        trace["grouped"] = groups.any(axis=1)
        trace["ranks_of"][trace["grouped"]] = groups[trace["grouped"]]
    absent = np.repeat(trace["ranks_of"][:, :, None] == 0, len(phases), axis=2)
    trace["seconds"] = np.ma.array(trace["seconds"], mask=absent)
    return trace


def mean_over_ranks(trace, values):
    """Means [steps, ...] of values [steps, columns, ...] in which a column counts as often as it has ranks."""
    import numpy as np

    weights = trace["ranks_of"].reshape(trace["ranks_of"].shape + (1,) * (values.ndim - 2))
    total = (np.ma.filled(values, 0) * weights).sum(axis=1)
    return total / trace["ranks"].reshape((-1,) + (1,) * (values.ndim - 2))


def quantiles_of(trace, quantity):
    """Quantiles [steps, groups, QUANTILES] of a phase, of communication or of one of SUMS; masked where there is no
    group."""
    import numpy as np

    values = trace["quantiles"][:, :, trace["quantities"].index(quantity)]
    absent = trace["group_ranks"] == 0
    return np.ma.array(values, mask=np.repeat(absent[:, :, None], QUANTILES, axis=2))


def spread_over_ranks(trace, quantities, seconds):
    """Mean, least and most over the ranks, in seconds per step, of `seconds` [steps, columns, quantities], of which
    groups of ranks have quantiles under these names."""
    mean, each = mean_over_ranks(trace, seconds).mean(axis=0), seconds.mean(axis=0)  # [names], [columns, names]
    low, high = (f(axis=0).filled(0) for f in (each.min, each.max))
    for i, quantity in enumerate(quantities):
        if quantity in trace["quantities"] and trace["grouped"].any():
            quantiles = quantiles_of(trace, quantity)[trace["grouped"]].mean(axis=0)  # [groups, quantiles]
            low[i], high[i] = min(low[i], quantiles[:, 0].min()), max(high[i], quantiles[:, -1].max())
    return mean, low, high


def extremes(trace, quantity):
    """Least and most [steps] over the ranks of a phase or of one of SUMS."""
    names = trace["phases"]
    parts = [i for i, name in enumerate(names) if name == quantity or (quantity in SUMS and name not in SUMS[quantity])]
    values = trace["seconds"][:, :, parts].sum(axis=2)
    least, most = (f(axis=1).filled(0) for f in (values.min, values.max))
    grouped = trace["grouped"]
    if grouped.any():
        quantiles = quantiles_of(trace, quantity)[grouped]
        least[grouped], most[grouped] = quantiles[:, :, 0].min(axis=1), quantiles[:, :, -1].max(axis=1)
    return least, most


def gaps(trace, end=0):
    """Steps without rows as pairs (first, end), from the start of the trace to its last row, or to `end`."""
    steps = [int(step) for step in trace["step"]]
    begin = trace["first_step"] if trace["first_step"] is not None else min(steps, default=end)
    missing = []
    for step in [*steps, max([end, *(step + 1 for step in steps)])]:
        if step > begin:
            missing.append((begin, step))
        begin = max(begin, step + 1)
    return missing


def missing_rows(missing):
    """The pairs of gaps() in words, with steps counted from 1 as in the log."""
    text = ", ".join(str(end) if end == first + 1 else f"{first + 1} to {end}" for first, end in missing)
    return f"no rows of steps {text}"


def train_seconds(trace):
    """Seconds of training at the end of each step, by the clock of rank 0, or of the ranks of its group, without
    validation, checkpoints and output."""
    columns = [i for i, name in enumerate(trace["phases"]) if name not in OCCASIONAL]
    return trace["seconds"].filled(0)[:, 0, columns].sum(axis=1).cumsum()


def updates_before(trace, steps):
    """How many rows of the trace come before that many updates."""
    import numpy as np

    return np.searchsorted(trace["step"], steps)
