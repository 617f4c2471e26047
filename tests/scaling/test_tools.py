"""How the Python tools end: whatever is wrong with files, modules or the terminal is one line, never a traceback."""

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
from support import MODEL, PHASES, TOOLS, ScalingTest, small_run, study_text, write_run

import deadline
import ensemble
import plot_run
import tool
from study import analysis, gather
from study.study_file import claim_folder, read_study

STEPS = 6
SUMMARY = {"final_val_loss": 3.2, "final_train_loss": 3.1, "tokens_per_second": 1e6, "train_seconds": 9.5}
WRONG_JSON = ["", "{", "[]", "1", "null", '"text"', '{"finished": tru', "\0", "[" * 100000, '{"a": ' * 5000, "nan",
              "1" * 5000, b"\xff\xfe{}", b'{"finished": "\xe4"}']
WRONG_TOML = ["[", "a = ", "= 1", "a = 1\na = 2", "[run\nseed = 1", "\0", "a = " + "[" * 100000,
              b"[run]\nname = \"\xff\""]


def write(path, contents):
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())


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


class Tools(ScalingTest):
    def setUp(self):
        super().setUp()
        self.run = self.folder / "outputs" / "a_1"
        self.write_run(self.run, 1)

    def write_run(self, folder, seed, ranks=2):
        seconds = np.full((STEPS, ranks, len(PHASES)), 0.1)
        write_run(folder, seconds, 4096, np.full((STEPS, ranks), 0.2), **SUMMARY)
        with open(folder / "deck.toml", "a") as deck:
            deck.write(f"[run]\nname = \"{folder.name}\"\nseed = {seed}\n")

    def end(self, script, *arguments, **options):
        """Exit code, standard output and standard error of a tool."""
        options = {"stdout": subprocess.PIPE} | options
        job = deadline.run([sys.executable, "-B", TOOLS / script, *map(str, arguments)],
                           stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, **options)
        return job.returncode, job.stdout, job.stderr

    def assert_line(self, error, script, *parts):
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith(f"{script}: "), error)
        for part in parts:
            self.assertIn(str(part), error)

    def assert_refused(self, script, *arguments, names=(), **options):
        code, output, error = self.end(script, *arguments, **options)
        self.assertIn(code, (1, 2), error)
        self.assert_line(error, script, *names)
        self.assertFalse(output)

    def assert_error(self, function, argument, *parts):
        """What the tool would end with."""
        with self.assertRaises(tool.ToolError) as caught:
            function(argument)
        for part in parts:
            self.assertIn(str(part), str(caught.exception))

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
                    trace = plot_run.read_trace(path)
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

    def change_trace(self, name, values=None, **attributes):
        import h5py

        with h5py.File(self.run / "trace.h5", "r+") as file:
            if name:
                del file[name]
                if values is not None:
                    file[name] = values
            for key, value in attributes.items():
                file.attrs[key] = value

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
                write(self.run / "trace.h5", whole)
                self.change_trace(name, values)
                with self.assertRaisesRegex(tool.ToolError, r"trace\.h5: not a trace: "):
                    plot_run.read_trace(self.run / "trace.h5")
        for phases in (7, "", "forward,backward", ",".join([*PHASES, "forward"]), np.zeros(3), b"\xff,\xfe"):
            with self.subTest(phases=phases):
                write(self.run / "trace.h5", whole)
                self.change_trace(None, phases=phases)
                with self.assertRaisesRegex(tool.ToolError, r"trace\.h5: not a trace: "):
                    plot_run.read_trace(self.run / "trace.h5")

    def test_rows_that_are_not_whole_are_left_out(self):
        import h5py

        with h5py.File(self.run / "trace.h5") as file:
            trace = {name: file[name][...] for name in plot_run.DATASETS}
        for name in plot_run.DATASETS:
            if name not in ("step", "validation_step"):
                self.change_trace(name, np.concatenate([trace[name], np.zeros_like(trace[name][:1])]))
        read = plot_run.read_trace(self.run / "trace.h5")
        for name, values in trace.items():
            np.testing.assert_array_equal(read[name], values)

    def test_steps_without_rows_are_told(self):
        """Within the trace, and of a run that has ended before its begin and behind its end."""
        path = self.run / "trace.h5"
        self.assertEqual(plot_run.gaps(plot_run.read_trace(path)), [])
        self.change_trace("step", np.array([1, 2, 3, 5, 8, 9]), first_step=0)
        trace = plot_run.read_trace(path)
        self.assertEqual(plot_run.gaps(trace), [(0, 1), (4, 5), (6, 8)])
        self.assertIn("  no rows of steps 1, 5, 7 to 8  ", plot_run.heading(self.run, trace))
        merits = json.loads((self.run / "summary.json").read_text())
        write(self.run / "summary.json", json.dumps(merits | {"steps": 12}))
        self.assertIn("  no rows of steps 1, 5, 7 to 8, 11 to 12  ", plot_run.heading(self.run, trace))
        for against in plot_run.AXES:
            plot_run.draw(self.run, trace, self.folder / f"{against}.png", against)
        plot_run.draw(self.run, trace | {"first_step": 1, "step": np.arange(1, 1 + STEPS)}, self.folder / "whole.png")
        self.assertNotEqual((self.folder / "steps.png").read_bytes(), (self.folder / "whole.png").read_bytes())

        with plot_run.open_for_reading(path) as whole:
            rows = {name: whole[name][...] for name in plot_run.DATASETS}
        for name in plot_run.DATASETS:
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
                plot_run.open_for_reading(path)  # the file system has locks, so that is not the reason
            with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available")):
                plot_run.open_for_reading(path).close()
        with open(path, "rb") as held, mock.patch("time.sleep"):
            fcntl.flock(held, fcntl.LOCK_EX)
            with self.assertRaisesRegex(tool.ToolError, "another program has it open for writing"):
                plot_run.read_datasets(path)
        self.assertEqual(len(plot_run.read_trace(path)["step"]), STEPS)

    def test_losses_that_are_no_numbers_are_drawn(self):
        for loss in (np.full(STEPS, np.nan), np.array([5, 4, 3, np.inf, np.nan, 1e29])):
            self.change_trace("loss", loss)
            plot_run.draw(self.run, plot_run.read_trace(self.run / "trace.h5"), self.folder / "run.png")

    def unreadable(self, path):
        """Puts in the place of a file what is none, one after the other."""
        path.unlink()
        for make, remove in ((Path.mkdir, Path.rmdir), (os.mkfifo, Path.unlink),
                             (lambda p: p.symlink_to(p.name), Path.unlink),
                             (lambda p: p.symlink_to("/dev/zero"), Path.unlink)):
            make(path)
            yield
            remove(path)

    def test_files_that_are_none(self):
        for script, name in (("plot_run.py", "trace.h5"), ("plot_run.py", "summary.json"),
                             ("ensemble.py", "summary.json"), ("ensemble.py", "deck.toml")):
            path = self.run / name
            contents = path.read_bytes()
            for _ in self.unreadable(path):
                self.assert_refused(script, self.run, names=[path])
            write(path, contents)

    def test_plot_run(self):
        trace, summary = self.run / "trace.h5", self.run / "summary.json"
        whole = trace.read_bytes()
        for contents in (b"", b"text\n", whole[:len(whole) // 2], bytes(5000)):
            write(trace, contents)
            self.assert_refused("plot_run.py", self.run, names=[trace])
        write(trace, whole)
        for contents in (WRONG_JSON[1], WRONG_JSON[2], WRONG_JSON[-1], json.dumps(SUMMARY | {"train_seconds": "9"}),
                         json.dumps(SUMMARY | {"tokens_per_second": float("nan")})):
            write(summary, contents)
            self.assert_refused("plot_run.py", self.run, names=[summary])
        summary.unlink()
        for output in (self.folder, self.folder / "none" / "run.png", "/dev/full"):
            self.assert_refused("plot_run.py", self.run, "-o", output, names=[output])
        self.assert_refused("plot_run.py", self.folder / "none", names=["none/trace.h5"])
        named = self.run.rename(self.folder / "a $x$ \\frac{ $ b")
        self.assertEqual(self.end("plot_run.py", named), (0, f"{named}/run.png\n", ""))

    def test_against_seconds(self):
        """Each step trains for 1 s: 10 of the 13 phases of 0.1 s are training. Validations come after 2 and 6 steps."""
        self.change_trace("validation_step", np.array([2, 6]))
        self.change_trace("validation_loss", np.array([4.0, 3.0]))
        trace = plot_run.read_trace(self.run / "trace.h5")
        self.assertEqual([list(part) for part in plot_run.places(trace, "steps")], [[0, 1, 2, 3, 4, 5, 6], [2, 6]])
        begins, validations = plot_run.places(trace, "seconds")
        np.testing.assert_allclose(begins, range(7), atol=1e-12)
        np.testing.assert_allclose(validations, [2, 6], atol=1e-12)
        pictures = []
        for against in ("steps", "seconds"):
            self.assertEqual(self.end("plot_run.py", self.run, "--against", against),
                             (0, f"{self.run / 'run.png'}\n", ""))
            pictures.append((self.run / "run.png").read_bytes())
        self.assertNotEqual(*pictures)

    def test_step_of_a_trace(self):
        path = self.run / "trace.json"
        self.assert_refused("plot_run.py", self.run, "--step", 1, names=[path])
        step = {"ph": "X", "name": "step 1", "cat": "step", "pid": 0, "tid": 0, "ts": 5e6, "dur": 2000}
        before = {"ph": "X", "name": "gather_weights", "cat": "transfer", "pid": 0, "tid": 1, "ts": 4999500, "dur": 700}
        after = {"ph": "X", "name": "a $x$", "cat": "phase", "pid": 0, "tid": 7, "ts": 5e6 + 1500, "dur": 9e9}
        write(path, json.dumps({"traceEvents": [step, after, before, step | {"pid": 1}]}))
        read = plot_run.read_step(path, 1, 0)
        self.assertEqual(read.spans, [("gather_weights", 1, 0, 0.2), ("a $x$", 7, 1.5, 2)])
        self.assertEqual((read.length, read.tracks), (2, {1: "track 1", 7: "track 7"}))
        self.assertEqual(self.end("plot_run.py", self.run, "--step", 1), (0, f"{self.run / 'step.png'}\n", ""))
        write(path, json.dumps({"traceEvents": [step, after | {"name": "x" * 100000}, {
            "ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "y" * 100000}}]}))
        read = plot_run.read_step(path, 1, 0)
        self.assertEqual((read.spans[0].name, read.tracks[7]), ("x" * 37 + "...", "y" * 37 + "..."))
        self.assertEqual(self.end("plot_run.py", self.run, "--step", 1), (0, f"{self.run / 'step.png'}\n", ""))
        for other in (("--step", 2), ("--step", 1, "--rank", 2)):
            self.assert_refused("plot_run.py", self.run, *other, names=[path, "trace.json_steps"])
        self.assert_refused("plot_run.py", self.run, "--step", 1, "-o", self.folder, names=[self.folder])
        events = [1, {}, step | {"dur": -1}, step | {"ts": "5"}, step | {"ts": 1e300}, step | {"name": 1},
                  step | {"tid": None}, step | {"pid": 0.5}, step | {"dur": 0},
                  {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0}]
        for contents in [*WRONG_JSON, *(json.dumps({"traceEvents": [event]}) for event in events),
                         json.dumps({"traceEvents": step})]:
            with self.subTest(contents=contents[:80]):
                write(path, contents)
                self.assert_error(lambda path: plot_run.read_step(path, 1, 0), path, path)
        for _ in self.unreadable(path):
            self.assert_refused("plot_run.py", self.run, "--step", 1, names=[path])

    def test_ensemble(self):
        summary, deck = self.run / "summary.json", self.run / "deck.toml"
        good_summary, good_deck = summary.read_text(), deck.read_text()
        changes = [{"finished": 1}, {"steps": "9"}, {"steps": 1.5}, {"final_val_loss": "3"}, {"final_val_loss": [3]},
                   {"final_val_loss": float("inf")}, {"final_train_loss": None}, {"final_train_loss": 1e300}]
        for contents in [*WRONG_JSON, *(json.dumps(json.loads(good_summary) | change) for change in changes)]:
            with self.subTest(summary=contents[:60]):
                write(summary, contents)
                self.assert_error(ensemble.read_run, self.run, summary)
        self.assert_refused("ensemble.py", self.run, names=[summary])
        write(summary, good_summary)
        runs = ["", "seed = 1", 'name = "a_1"', "name = 1\nseed = 1",
                'name = "a_1"\nseed = "1"', 'name = "a_1"\nseed = true']
        for contents in [*WRONG_TOML, "", "run = 1", *("[run]\n" + run for run in runs)]:
            with self.subTest(deck=contents[:60]):
                write(deck, contents)
                self.assert_error(ensemble.read_run, self.run, deck)
        self.assert_refused("ensemble.py", self.run, names=[deck])
        write(deck, good_deck)
        self.assertEqual(self.end("ensemble.py", self.run)[0], 0)
        code, output, error = self.end("ensemble.py", self.folder / "none")
        self.assertEqual((code, output), (1, ""))
        self.assertIn("none/summary.json is missing\nensemble.py: no finished run\n", error)

    def test_modules_that_are_missing(self):
        modules = self.folder / "modules"
        modules.mkdir()
        for name in ("h5py", "matplotlib", "numpy"):
            (modules / f"{name}.py").write_text("raise ImportError('broken')\n")
            study = self.write_study(name=f"s_{name}")
            for script, argument in (("plot_run.py", self.run), ("scaling_study.py", study)):
                arguments = [argument] if script == "plot_run.py" else [argument, "--launcher", "none"]
                self.assert_refused(script, *arguments, env=os.environ | {"PYTHONPATH": str(modules)},
                                    names=[f"no module {name}", f"python3-{name}", f"pip install {name}"])
            (modules / f"{name}.py").unlink()
        self.write_run(self.run.with_name("a_2"), 2)
        (modules / "scipy.py").write_text("raise ImportError('broken')\n")
        self.assert_refused("ensemble.py", self.run, self.run.with_name("a_2"),
                            env=os.environ | {"PYTHONPATH": str(modules)}, names=["no module scipy", "python3-scipy"])
        (modules / "tomllib.py").write_text("raise ImportError('old')\n")
        old = os.environ | {"PYTHONPATH": str(modules)}
        self.assert_refused("ensemble.py", self.run, env=old, names=["Python 3.11"])

    def interrupted(self, script, *arguments, by=signal.SIGINT, **variables):
        """Ends a tool, by default by Ctrl-C, once the file `busy` is there."""
        job = subprocess.Popen([sys.executable, "-B", TOOLS / script, *map(str, arguments)], text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True, env=os.environ | variables)
        while not (self.folder / "busy").exists():
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        os.killpg(job.pid, by)
        _, error = deadline.communicate(job, 60)
        (self.folder / "busy").unlink()
        self.assertEqual((job.returncode, error), (1, f"{script}: interrupted\n"))

    def test_interrupt(self):
        (self.folder / "h5py.py").write_text("import time\nopen('busy', 'w').close()\ntime.sleep(60)\n")
        self.interrupted("plot_run.py", self.run, PYTHONPATH=str(self.folder))
        (self.folder / "nanorun").write_text("#!/usr/bin/env bash\ntouch busy\nsleep 60\n")
        (self.folder / "nanorun").chmod(0o755)
        shutil.copy(self.folder / "nanorun", self.folder / "mpirun")
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        study = self.write_study()
        self.interrupted("scaling_study.py", study, "--program", self.folder / "nanorun", PATH=path)
        write(self.folder / "nanorun", "#!/usr/bin/env bash\n")
        write(self.folder / "mpirun", "#!/usr/bin/env bash\ntrap 'touch ended; exit 1' TERM\ntouch busy\n"
                                      "sleep 60 &\nwait\n")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.interrupted("scaling_study.py", study, "--program", self.folder / "nanorun", by=number, PATH=path)
            (self.folder / "ended").unlink()  # mpirun was told, and waited for

    def test_ranks_end_with_the_study(self):
        small_run.write_data(self.folder)
        program = self.folder / "nanorun"
        write(program, f"#!/usr/bin/env bash\n[[ $* == *--dry-run* ]] || echo $$ >>pids\n"
                       f"exec {small_run.PROGRAM} \"$@\"\n")
        program.chmod(0o755)
        path = f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"
        job = subprocess.Popen([sys.executable, "-B", TOOLS / "scaling_study.py", self.write_study(
            ranks=[2], steps=10**6), "--program", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=os.environ | {"PATH": path})
        log, pids = self.folder / "outputs/test/ranks2_repeat1.log", self.folder / "pids"
        while not log.exists() or "step " not in log.read_text():
            self.assertIsNone(job.poll())
            time.sleep(0.05)
        job.terminate()
        self.assertEqual(job.wait(60), 1)
        ranks = [Path("/proc") / pid for pid in pids.read_text().split()]
        self.assertEqual(len(ranks), 2)
        limit = time.monotonic() + 30
        while any(rank.exists() for rank in ranks) and time.monotonic() < limit:
            time.sleep(0.05)
        self.assertEqual([rank for rank in ranks if rank.exists()], [])

    def test_settings_of_the_user(self):
        """Pictures do not depend on them, and nothing is said of them."""
        study = self.write_study(steps=STEPS)
        for ranks in (1, 2):
            self.write_run(self.folder / "outputs" / "test" / f"ranks{ranks}_repeat1", 1, ranks)
        write(self.folder / "matplotlibrc", "text.usetex: True\nfont.size: many\n")
        (self.folder / "bin").mkdir()  # no latex there
        settings = os.environ | {"MPLBACKEND": "nonsense", "MATPLOTLIBRC": str(self.folder / "matplotlibrc"),
                                 "PATH": str(self.folder / "bin")}
        for script, *arguments in (("plot_run.py", self.run), ("scaling_study.py", study, "--launcher", "none")):
            code, _, error = self.end(script, *arguments, env=settings)
            self.assertEqual((code, error), (0, ""))
        write(self.folder / "file", "")
        unwritable = os.environ | {"MPLCONFIGDIR": str(self.folder / "file" / "none")}
        code, _, error = self.end("plot_run.py", self.run, env=unwritable)
        self.assertEqual((code, error), (0, ""))

    def test_without_documentation(self):
        """As Python under -OO."""
        for script in ("plot_run.py", "ensemble.py", "scaling_study.py", "measure_node.py",
                       "measure_node_deck.py"):
            code, output, error = self.end(script, "--help", env=os.environ | {"PYTHONOPTIMIZE": "2"})
            self.assertEqual((code, error), (0, ""))
            self.assertIn(f"usage: {script}", output)

    def test_warnings_that_nobody_reads(self):
        with open("/dev/full", "w") as full:
            job = deadline.run([sys.executable, "-B", TOOLS / "ensemble.py", self.run, self.folder / "none"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60)
            self.assertEqual(job.returncode, 0)
            self.assertRegex(job.stdout, r"mean +3\.1")
            job = deadline.run([sys.executable, "-B", TOOLS / "ensemble.py", self.folder / "none"],
                               stdin=subprocess.DEVNULL, stderr=full, timeout=60)
            self.assertEqual(job.returncode, 1)

    def test_phases_of_earlier_programs(self):
        """They call sync "agree"."""
        self.change_trace(None, phases=",".join(PHASES).replace(",sync,", ",agree,"))
        self.assertEqual(plot_run.read_trace(self.run / "trace.h5")["phases"], list(PHASES))
        step = {"ph": "X", "name": "step 1", "cat": "step", "pid": 0, "tid": 0, "ts": 0, "dur": 2000}
        write(self.run / "trace.json", json.dumps({"traceEvents": [step, step | {"name": "agree", "cat": "phase"}]}))
        self.assertEqual(plot_run.read_step(self.run / "trace.json", 1, 0).spans, [("sync", 0, 0, 2)])

    def test_nobody_reads(self):
        """As behind `head`: the tool ends with the code of its result."""
        for code, script, *arguments in ((0, "ensemble.py", self.run), (0, "plot_run.py", self.run),
                                         (0, "ensemble.py", "--help"),
                                         (1, "scaling_study.py", self.write_study(), "--launcher", "none")):
            reader, writer = os.pipe()
            os.close(reader)
            said = subprocess.run([sys.executable, "-B", TOOLS / script, *map(str, arguments)], stdout=writer,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            os.close(writer)
            self.assertEqual((said.returncode, said.stderr), (code, ""), script)
            with open("/dev/full", "w") as full:
                self.assert_refused(script, *arguments, names=["standard output: No space"], stdout=full)

    def test_study_files(self):
        study = self.folder / "study.toml"
        program = self.folder / "nanorun"
        big = ["sequences = 99999999999999", "repeats = 9999999", "steps = 0x7fffffffffffffff", "ranks = [99999999]"]
        texts = [*WRONG_TOML, "", "[study]", "study = 1", "[study]\nname = 1", study_text(name="a\\u0000b"),
                 study_text(more='outputs = "a\\u0000"'), study_text(more="[launch]\nmpirun = [1]"),
                 study_text(more="[launch]\nsbatch = [[]]"), study_text(more="[prediction]\nlatency = nan"),
                 study_text(more="[prediction]\nbandwidth = inf"),
                 study_text(more="[prediction]\nmax_ranks = 99999999"),
                 study_text(more='overrides = ["a.b=\\u0000"]'), study_text(ranks=(1, 3), sequences=2**31 - 1),
                 *("\n".join(line if line.split("=")[0] != text.split("=")[0] else text
                             for line in study_text().splitlines()) for text in big)]
        for text in texts:
            with self.subTest(text=text[:80]):
                write(study, text)
                self.assert_error(read_study, study, "study.toml")
        self.assert_refused("scaling_study.py", study, "--launcher", "none", names=["study.toml"])
        for _ in self.unreadable(study):
            self.assert_refused("scaling_study.py", study, "--launcher", "none", names=["study.toml"])
        self.write_study()
        program.write_bytes(b"\x7fELF nonsense")
        program.chmod(0o755)
        self.assert_refused("scaling_study.py", "study.toml", "--program", program, names=[program])
        write(self.folder / "deck.toml", b"\xff")
        self.assert_refused("scaling_study.py", "study.toml", "--launcher", "none", names=["deck.toml"])

    def test_folders_of_studies(self):
        study = self.write_study()
        (self.folder / "outputs" / "test").touch()
        self.assert_refused("scaling_study.py", study, "--launcher", "none", names=["outputs/test: "])
        (self.folder / "outputs" / "test").unlink()
        for contents in WRONG_JSON:
            record = self.folder / "outputs" / "test" / "study.json"
            record.parent.mkdir(exist_ok=True)
            write(record, contents)
            self.assert_error(claim_folder, read_study(study), "outputs/test/study.json: ")
        self.assert_refused("scaling_study.py", study, "--launcher", "none", names=["outputs/test/study.json: "])

    def test_name_that_the_locale_lacks(self):
        ascii_only = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        self.assert_refused("scaling_study.py", self.write_study(name="é"), "--launcher", "none", env=ascii_only,
                            names=["outputs/", "not a path in this locale"])

    def test_runs_of_a_study(self):
        study = self.write_study(steps=STEPS)
        for ranks in (1, 2):
            self.write_run(self.folder / "outputs" / "test" / f"ranks{ranks}_repeat1", 1, ranks)
        run = self.folder / "outputs" / "test" / "ranks1_repeat1"
        trace = (run / "trace.h5").read_bytes()
        self.assertEqual(gather.gather(read_study(study))[1], [])
        for name in ("trace.h5", "summary.json"):
            whole = (run / name).read_bytes()
            for contents in (b"", b"[]", whole[:len(whole) // 2], b"\xff" * 100):
                write(run / name, contents)
                (missing, _), = gather.gather(read_study(study))[1]
                self.assertEqual(missing.name, "ranks1_repeat1")
            write(run / name, whole)
        write(run / "trace.h5", b"")
        code, output, error = self.end("scaling_study.py", study, "--launcher", "none")
        self.assertEqual((code, error), (1, ""))
        self.assertRegex(output, r"missing: ranks1_repeat1 unreadable: \S+/trace\.h5: .*; "
                                 r"remove \S+/ranks1_repeat1 to measure it again")
        write(run / "trace.h5", trace)
        good, first = (run / "deck.toml").read_text(), read_study(study).runs()[0]
        wrong = [*WRONG_TOML, "", "model = 1", "[model]", good.replace('"bf16"', '"fp7"'), good.replace('"bf16"', "16")]
        wrong += [good.replace(f"{key} = {json.dumps(value)}", f"{key} = {other}") for key, value in MODEL.items()
                  if key not in ("heads", "head_dim") for other in ('{}', "-1", "1979-05-27")]
        wrong += [good.replace("layers = 4", "layers = 99999999"), good.replace("attention = []", "attention = [9]")]
        for text in wrong:
            with self.subTest(deck=text[:300]):
                self.assertNotEqual(text, good)
                write(run / "deck.toml", text)
                self.assert_error(analysis.workload_of, first, "ranks1_repeat1/deck.toml: ")
        self.assert_refused("scaling_study.py", study, "--launcher", "none", names=["ranks1_repeat1/deck.toml: "])
        write(run / "deck.toml", good)
        for name in ("report.png", "runs.csv"):
            (run.parent / name).unlink(missing_ok=True)
            (run.parent / name).mkdir()
            code, _, error = self.end("scaling_study.py", study, "--launcher", "none")
            self.assertEqual(code, 2)
            self.assert_line(error, "scaling_study.py", f"outputs/test/{name}: Is a directory")
            (run.parent / name).rmdir()


if __name__ == "__main__":
    small_run.main()
