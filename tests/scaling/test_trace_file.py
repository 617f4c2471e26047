"""How the Python tools read trace.h5: whole or damaged, of other programs, and while a run writes it."""

import errno
import fcntl
import json
import os
import random
import signal
from unittest import mock

import numpy as np
from support import PHASES, STEPS, ToolsTest, small_run, write, write_groups

import plot_run
import tool
import trace_file


def mangled(contents):
    """Copies of a file that were cut, had bytes flipped, or parts replaced."""
    draw = random.Random(0)
    size = len(contents)
    for end in [0, 1, 8, *range(61, size, size // 60)]:
        yield f"cut at {end}", contents[:end]
    for bit in range(300):
        at, copy = draw.randrange(size), bytearray(contents)
        copy[at] ^= 1 << draw.randrange(8)
        yield f"byte {at} flipped", bytes(copy)
    for length in (1, 8, 64, 512, 4096):
        for filling in (bytes(length), b"\xff" * length, draw.randbytes(length)):
            for _ in range(10):
                at = draw.randrange(size)
                yield f"{length} bytes at {at} replaced", contents[:at] + filling + contents[at + length:]


class TraceFile(ToolsTest):
    def test_mangled_traces(self):
        """Each is read or refused by name; those that can be read can be drawn, which a few are."""
        self.addCleanup(setattr, tool, "READ_SECONDS", tool.READ_SECONDS)
        tool.READ_SECONDS = 5
        path = self.run / "trace.h5"
        counts = {"read": 0, "refused": 0}
        for what, contents in mangled(path.read_bytes()):
            with self.subTest(what=what):
                write(path, contents)
                try:
                    trace = trace_file.read_trace(path)
                except tool.ToolError as error:
                    self.assertTrue(str(error).startswith(f"{path}: "), error)
                    counts["refused"] += 1
                    continue
                counts["read"] += 1
                if counts["read"] % 50 == 0:
                    plot_run.draw(self.run, trace, self.folder / "run.png")
        self.assertGreater(min(counts.values()), 50, counts)

    def test_readers_that_crash_or_never_end(self):
        """As HDF5 does with some damaged files."""
        def read(path):
            os.kill(os.getpid(), path)

        self.addCleanup(setattr, tool, "READ_SECONDS", tool.READ_SECONDS)
        tool.READ_SECONDS = 0.5
        with self.assertRaisesRegex(tool.ToolError, f"^{signal.SIGSEGV}: damaged: reading it crashes"):
            tool.read_apart(read, signal.SIGSEGV)
        with self.assertRaisesRegex(tool.ToolError, f"^{signal.SIGSTOP}: damaged: reading it does not end"):
            tool.read_apart(read, signal.SIGSTOP)
        with self.assertRaises(TypeError):
            tool.read_apart(read, "x")

    def assert_no_trace(self, whole, *values, **attributes):
        """The file with these bytes is refused once change_trace() has changed it so."""
        write(self.run / "trace.h5", whole)
        self.change_trace(*values, **attributes)
        with self.assertRaisesRegex(tool.ToolError, r"trace\.h5: not a trace: "):
            trace_file.read_trace(self.run / "trace.h5")

    def test_traces_that_cannot_be(self):
        whole = (self.run / "trace.h5").read_bytes()
        seconds = np.full((STEPS, 2, len(PHASES)), 0.1)
        cases = [("loss", None), ("loss", "text"), ("loss", np.ones(STEPS - 1)), ("loss", np.ones((STEPS, 1))),
                 ("loss", np.full(STEPS, 1e300)), ("step", np.zeros(STEPS, int)), ("step", -np.arange(STEPS)),
                 ("ranks", np.full(STEPS, 3)), ("ranks", np.zeros(STEPS, int)), ("tokens", np.full(STEPS, np.nan)),
                 ("seconds", seconds[:, :, :5]), ("seconds", np.full_like(seconds, np.nan)), ("seconds", -seconds),
                 ("seconds", 0 * seconds), ("seconds", seconds[:, :0]), ("communication", np.ones((STEPS, 1))),
                 ("validation_step", np.ones(1)), ("validation_step", 1.5)]
        for name, values in cases:
            with self.subTest(name=name, values=values):
                self.assert_no_trace(whole, name, values)
        for phases in (7, "", "forward,backward", ",".join([*PHASES, "forward"]), np.zeros(3), b"\xff,\xfe"):
            with self.subTest(phases=phases):
                self.assert_no_trace(whole, None, phases=phases)

    def write_groups(self):
        """The trace of 6 ranks in groups of 3."""
        shape = (STEPS, 6)
        write_groups(self.run / "trace.h5", np.full((*shape, len(PHASES)), 0.1), 1024, np.full(shape, 0.3),
                     np.full(shape, 0.1), 3)

    def test_groups_of_ranks(self):
        self.write_groups()
        trace = trace_file.read_trace(self.run / "trace.h5")
        self.assertTrue(trace["grouped"].all())
        np.testing.assert_array_equal(trace["ranks_of"], np.full((STEPS, 2), 3))
        for quantity, phases in (("forward", 1), ("step", len(PHASES) - 2), ("computing", len(PHASES) - 7)):
            for values in trace_file.extremes(trace, quantity):
                np.testing.assert_allclose(values, 0.1 * phases, rtol=1e-6)
        np.testing.assert_allclose(trace_file.mean_over_ranks(trace, trace["seconds"]), 0.1)

    def test_groups_that_cannot_be(self):
        self.write_groups()
        whole = (self.run / "trace.h5").read_bytes()
        quantiles = np.full((STEPS, 2, len(PHASES) + 5, 5), 0.1, np.float32)
        cases = [("group_ranks", np.full((STEPS, 2), 4)), ("group_ranks", np.full((STEPS, 2), [7, -1])),
                 ("group_ranks", np.zeros((STEPS, 2), int)), ("group_ranks", np.full((STEPS, 3), 2)),
                 ("group_ranks", 3), ("quantiles", quantiles[:, :1]), ("quantiles", -quantiles),
                 ("quantiles", np.full_like(quantiles, np.nan)), ("slowest", np.full((STEPS, 2, len(PHASES) + 5), 6)),
                 ("slowest", np.full((STEPS, 2), 0))]
        for name, values in cases:
            with self.subTest(name=name, values=values):
                self.assert_no_trace(whole, name, values)
        write(self.run / "trace.h5", whole)
        self.change_trace(None, quantities="forward,backward")
        with self.assertRaisesRegex(tool.ToolError, "the quantities are those of another program"):
            trace_file.read_trace(self.run / "trace.h5")

    def test_rows_that_are_not_whole_are_left_out(self):
        import h5py

        with h5py.File(self.run / "trace.h5") as file:
            trace = {name: file[name][...] for name in trace_file.DATASETS}
        for name in trace_file.DATASETS:
            if name not in ("step", "validation_step"):
                self.change_trace(name, np.concatenate([trace[name], np.zeros_like(trace[name][:1])]))
        read = trace_file.read_trace(self.run / "trace.h5")
        for name, values in trace.items():
            np.testing.assert_array_equal(read[name], values)

    def test_steps_without_rows_are_told(self):
        """Within the trace, and of a run that has ended before its start and behind its end."""
        path = self.run / "trace.h5"
        self.assertEqual(trace_file.gaps(trace_file.read_trace(path)), [])
        self.change_trace("step", np.array([1, 2, 3, 5, 8, 9]), first_step=0)
        trace = trace_file.read_trace(path)
        self.assertEqual(trace_file.gaps(trace), [(0, 1), (4, 5), (6, 8)])
        self.assertIn("  no rows of steps 1, 5, 7 to 8  ", plot_run.heading(self.run, trace))
        merits = json.loads((self.run / "summary.json").read_text())
        write(self.run / "summary.json", json.dumps(merits | {"steps": 12}))
        self.assertIn("  no rows of steps 1, 5, 7 to 8, 11 to 12  ", plot_run.heading(self.run, trace))
        for against in plot_run.AXES:
            plot_run.draw(self.run, trace, self.folder / f"{against}.png", against)
        plot_run.draw(self.run, trace | {"first_step": 1, "step": np.arange(1, 1 + STEPS)}, self.folder / "whole.png")
        self.assertNotEqual((self.folder / "steps.png").read_bytes(), (self.folder / "whole.png").read_bytes())

        with trace_file.open_for_reading(path) as whole:
            rows = {name: whole[name][...] for name in trace_file.DATASETS}
        for name in trace_file.DATASETS:
            self.change_trace(name, rows[name][:0])
        self.assert_refused("plot_run.py", self.run, names=["trace.h5: no rows of steps 1 to 12"])

    def test_files_without_locks(self):
        """As on file systems that have none; where another program holds the lock, that is said."""
        import h5py

        path, opened = self.run / "trace.h5", h5py.File

        def open_without_locks(*arguments, locking=True, **options):
            if locking:
                raise OSError(errno.ENOLCK, "Unable to open file (unable to lock file, errno = 37)")
            return opened(*arguments, locking=locking, **options)

        with mock.patch("h5py.File", open_without_locks):
            with self.assertRaises(OSError):
                trace_file.open_for_reading(path)  # the file system has locks, so that is not the reason
            with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available")):
                trace_file.open_for_reading(path).close()
        with open(path, "rb") as held, mock.patch("time.sleep"):
            fcntl.flock(held, fcntl.LOCK_EX)
            with self.assertRaisesRegex(tool.ToolError, "another program has it open for writing"):
                trace_file.read_datasets(path)
        self.assertEqual(len(trace_file.read_trace(path)["step"]), STEPS)

    def test_losses_that_are_no_numbers_are_drawn(self):
        for loss in (np.full(STEPS, np.nan), np.array([5, 4, 3, np.inf, np.nan, 1e29])):
            self.change_trace("loss", loss)
            plot_run.draw(self.run, trace_file.read_trace(self.run / "trace.h5"), self.folder / "run.png")

    def test_phases_of_earlier_programs(self):
        """They call sync "agree"."""
        self.change_trace(None, phases=",".join(PHASES).replace(",sync,", ",agree,"))
        self.assertEqual(trace_file.read_trace(self.run / "trace.h5")["phases"], list(PHASES))
        step = {"ph": "X", "name": "step 1", "cat": "step", "pid": 0, "tid": 0, "ts": 0, "dur": 2000}
        write(self.run / "trace.json", json.dumps({"traceEvents": [step, step | {"name": "agree", "cat": "phase"}]}))
        self.assertEqual(plot_run.read_step(self.run / "trace.json", 1, 0).spans, [("sync", 0, 0, 2)])


if __name__ == "__main__":
    small_run.main()
