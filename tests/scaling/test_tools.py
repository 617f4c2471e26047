"""How the Python tools end: whatever is wrong with files, modules or the terminal is one line, never a traceback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from support import STEPS, SUMMARY, TOOLS, ToolsTest, small_run, study_text, write, write_plans

import deadline
import ensemble
import plot_run
import trace_file
from study import gather, plan
from study.study_file import claim_folder, read_study

WRONG_JSON = ["", "{", "[]", "1", "null", '"text"', '{"finished": tru', "\0", "[" * 100000, '{"a": ' * 5000, "nan",
              "1" * 5000, b"\xff\xfe{}", b'{"finished": "\xe4"}']
WRONG_TOML = ["[", "a = ", "= 1", "a = 1\na = 2", "[run\nseed = 1", "\0", "a = " + "[" * 100000,
              b"[run]\nname = \"\xff\""]


class Tools(ToolsTest):
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
        trace = trace_file.read_trace(self.run / "trace.h5")
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
        self.assert_refused("plot_run.py", self.run, "--step", 2, names=[path, "trace.json_steps"])
        self.assert_refused("plot_run.py", self.run, "--step", 1, "--rank", 2, names=[path, "no rank 2, but 0;"])
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
        write(self.folder / "nanorun", "#!/usr/bin/env bash\necho '{}'\n")
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
        write_plans(read_study(study))
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
        for script in ("plot_run.py", "ensemble.py", "scaling_study.py", "measure_node.py", "node/deck.py"):
            code, output, error = self.end(script, "--help", env=os.environ | {"PYTHONOPTIMIZE": "2"})
            self.assertEqual((code, error), (0, ""))
            self.assertIn(f"usage: {Path(script).name}", output)

    def test_warnings_that_nobody_reads(self):
        with open("/dev/full", "w") as full:
            job = deadline.run([sys.executable, "-B", TOOLS / "ensemble.py", self.run, self.folder / "none"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60)
            self.assertEqual(job.returncode, 0)
            self.assertRegex(job.stdout, r"mean +3\.1")
            job = deadline.run([sys.executable, "-B", TOOLS / "ensemble.py", self.folder / "none"],
                               stdin=subprocess.DEVNULL, stderr=full, timeout=60)
            self.assertEqual(job.returncode, 1)

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

    def check_plans(self, study, path):
        """Plans that are none are refused by name; where there are none, or of other settings, the program writes them,
        or is asked for."""
        good = json.loads(path.read_text())
        entry = good["measured"][0]
        for change in ({"work": {"sgd": 1}}, {"work": 1}, {"work": {"muon": -1}}, {"ranks": 0}, {"nodes": 1.5},
                       {"nodes_from": 1}, {"memory_bytes": {}}, {"matrices": [1]}, {"sent": {"inside": {}}},
                       {"refusal": None}):
            write(path, json.dumps(good | {"measured": [entry | change]}))
            self.assert_error(plan.read_plans, path.parent, path)
        for contents in (*WRONG_JSON, '{"measured": {}}', '{"measured": [1]}', '{"measured": []}'):
            write(path, contents)
            self.assert_error(plan.read_plans, path.parent, path)
        for contents, why in ((None, "missing"), ("{}", "of other settings")):
            path.unlink()
            if contents:
                write(path, contents)
            self.assert_refused("scaling_study.py", study, "--launcher", "none", "--program", "./none",
                                names=[f"outputs/test/plans.json: {why}", "./none", "--program"])
            code, _, error = self.end("scaling_study.py", study, "--launcher", "none", "--program", small_run.PROGRAM)
            self.assertEqual((code, error), (0, ""))
            self.assertEqual(json.loads(path.read_text())["of"], good["of"])

    def test_runs_of_a_study(self):
        study = self.write_study(steps=STEPS)
        for ranks in (1, 2):
            self.write_run(self.folder / "outputs" / "test" / f"ranks{ranks}_repeat1", 1, ranks)
        write_plans(read_study(study))
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
        self.check_plans(study, run.parent / "plans.json")
        for name in ("report.png", "runs.csv"):
            (run.parent / name).unlink(missing_ok=True)
            (run.parent / name).mkdir()
            code, _, error = self.end("scaling_study.py", study, "--launcher", "none")
            self.assertEqual(code, 2)
            self.assert_line(error, "scaling_study.py", f"outputs/test/{name}: Is a directory")
            (run.parent / name).rmdir()


if __name__ == "__main__":
    small_run.main()
