"""trace.h5 of a run: its steps, whose times the ranks have measured by phase, and its validations."""

import os
import time

import tool

COMMUNICATION = {"reduce_gradients", "gather_weights", "sync"}
OCCASIONAL = {"validation", "checkpoint", "output"}
# With their dimensions.
DATASETS = {"step": 1, "ranks": 1, "tokens": 1, "loss": 1, "seconds": 3, "communication": 2, "validation_step": 1,
            "validation_loss": 1}
LATER_DATASETS = {"communication_between": 2}  # read as zeros where an earlier program has written the trace
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
            for name, dimensions in present.items():
                if not isinstance(file[name], h5py.Dataset) or file[name].ndim != dimensions:
                    raise ValueError(f"/{name} is no dataset of {dimensions} dimensions")
                # Where no data are stored HDF5 would make them up, of whatever size a damaged file gives.
                if file[name].dtype.kind not in "iuf" or int(file[name].size) * file[name].dtype.itemsize > size:
                    raise ValueError(f"/{name} cannot be of that type and shape")
            trace = {name: file[name][...] for name in present}
            trace.setdefault("communication_between", np.zeros_like(trace["communication"]))
            trace["first_step"] = int(file.attrs["first_step"]) if "first_step" in file.attrs else None
            phases = file.attrs["phases"]
            names = (phases.decode() if isinstance(phases, bytes) else phases).split(",")
            return trace, [EARLIER_NAMES.get(name, name) for name in names]


def cut(trace):
    """Leaves out rows that are not complete: /step is written last."""
    for steps, names in (("step", ("ranks", "tokens", "loss", "seconds", "communication", "communication_between")),
                         ("validation_step", ("validation_loss",))):
        for name in names:
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
    for name, (least, most) in (BOUNDS | {"ranks": (1, columns)}).items():
        if not np.all((trace[name] >= least) & (trace[name] <= most)):
            return f"/{name} holds what cannot be"
    for name in ("loss", "validation_loss"):
        if np.any(np.isfinite(trace[name]) & (np.abs(trace[name]) > MAX_LOSS)):
            return f"/{name} holds what cannot be"
    if np.any(np.diff(trace["step"]) <= 0):
        return "/step does not ascend"
    return "/seconds holds no time" if steps and not np.any(trace["seconds"]) else None


def read_trace(path):
    """The datasets of a trace.h5, /seconds masked where a rank took no part in a step, and its phases.

    Throws ToolError.
    """
    import numpy as np

    trace, phases = tool.read_apart(read_datasets, path)
    cut(trace)
    wrong = fault(trace, phases)
    if wrong:
        raise tool.ToolError(f"{path}: not a trace: {wrong}")
    trace["phases"] = phases
    columns = np.arange(trace["seconds"].shape[1])
    absent = columns[None, :] >= trace["ranks"][:, None]
    trace["seconds"] = np.ma.array(trace["seconds"], mask=np.repeat(absent[:, :, None], len(phases), axis=2))
    return trace


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
    """Seconds of training at the end of each step, by the clock of rank 0, without validation, checkpoints and
    output."""
    columns = [i for i, name in enumerate(trace["phases"]) if name not in OCCASIONAL]
    return trace["seconds"].filled(0)[:, 0, columns].sum(axis=1).cumsum()


def updates_before(trace, steps):
    """How many rows of the trace come before that many updates."""
    import numpy as np

    return np.searchsorted(trace["step"], steps)
