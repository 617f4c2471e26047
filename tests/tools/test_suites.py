"""The files of benchmarks/ read what benchmark.sh prints: JUBE's, ReFrame's and Ramble's patterns on a real output.

Where jube and reframe are installed, they run too. Elsewhere stubs stand for the modules of ReFrame, Ramble and
Benchpark.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

from support import ROOT, ToolTest, load, small_run
from test_benchmark import FILE, SHARED_CORES

import benchmark
import busy
import deadline

FILES = ROOT / "benchmarks"
FLOAT = r"([+-]?(?:\d*\.?\d+(?:[eE][-+]?\d+)?|\d+\.))"  # JUBE's $jube_pat_fp


def environment():
    path = f"{Path(small_run.MPIRUN).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | SHARED_CORES | {"PATH": path}


def options(size="small"):
    return f"--size {size} --program {small_run.PROGRAM}"


def with_modules(path, **modules):
    """The module of a file, which imports `modules`, each a table of what is in it; `__` stands for a point."""
    stubs = {}
    for name, content in modules.items():
        parent, _, last = (name := name.replace("__", ".")).rpartition(".")
        stubs[name] = types.ModuleType(name)
        vars(stubs[name]).update(content)
        if parent:
            setattr(stubs[parent], last, stubs[name])
    with mock.patch.dict(sys.modules, stubs):
        return load(path)


def decorator(*_):
    return lambda function: function


def reframe_test(kind, ranks, folder):
    """The test of ReFrame for a partition whose launcher is mpirun, before it runs."""
    sanity = {
        "assert_found": lambda pattern, path: re.search(pattern, Path(path).read_text(), re.MULTILINE) is not None,
        "extractall": lambda pattern, path, groups: [match.group(*groups) for match in
                                                     re.finditer(pattern, Path(path).read_text(), re.MULTILINE)],
        "evaluate": lambda value: value, "defer": lambda value: value,
        "make_performance_function": lambda value, unit: (value, unit)}
    module = with_modules("benchmarks/reframe/nanorun_test.py",
                          reframe={"RunOnlyRegressionTest": object, "simple_test": lambda test: test},
                          reframe__utility={}, reframe__utility__sanity=sanity, reframe__core={},
                          reframe__core__backends={"getlauncher": lambda name: lambda: name},
                          reframe__core__builtins={"parameter": list, "variable": lambda kind, value: value,
                                                   "run_before": decorator, "sanity_function": lambda check: check})
    prefix = folder / "a prefix" / "benchmarks" / "reframe"
    prefix.mkdir(parents=True)
    (folder / "a prefix" / "jobscripts").symlink_to(ROOT / "jobscripts")
    test = module.nanorun_benchmark()
    launcher = types.SimpleNamespace(registered_name="mpirun")
    vars(test).update(kind=kind, num_tasks=ranks, options=options(), prefix=str(prefix), job=mock.Mock(),
                      current_partition=types.SimpleNamespace(launcher_type=launcher), stagedir=str(folder),
                      stdout=str(folder / "output"), perf_variables={})
    return test


class Suites(ToolTest):
    """One real run on two ranks, by the command of the ReFrame test."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-suites-")
        cls.addClassCleanup(temporary.cleanup)
        cls.place = Path(temporary.name)
        cls.reframe = reframe_test("weak", 2, cls.place)
        cls.reframe.start_the_script_once()
        command = " ".join([cls.reframe.executable, *cls.reframe.executable_opts])
        job = deadline.run(["bash", "-c", command], text=True, cwd=cls.place, env=environment(), timeout=120,
                           stdin=subprocess.DEVNULL, capture_output=True)
        assert job.returncode == 0, job.stdout + job.stderr
        cls.output = job.stdout
        (cls.place / "output").write_text(job.stdout)
        cls.result = json.loads((cls.place / "result" / "benchmark.json").read_text())

    def known(self):
        """The figures of merit that the output should name."""
        figures = {"ranks": 2, "loss": self.result["loss"]} | self.result["figures"]
        figures["busy_machine"] = 1 if self.result["busy"] else None
        return {name: value for name, value in figures.items() if value is not None}

    def assert_figures(self, found):
        self.assertEqual(found.keys(), self.known().keys())
        for name, value in self.known().items():
            self.assertAlmostEqual(found[name] / (value or 1), value / (value or 1), places=7, msg=name)

    def test_output(self):
        self.assertEqual(self.result["kind"], "weak")
        self.assertTrue(self.output.endswith("\n\nPASSED\n"), self.output)
        found = re.findall(r"^FOM (\w+) (\S+)$", self.output, re.MULTILINE)
        self.assert_figures({name: float(value) for name, value in found})
        nothing = {"ranks": 1, "loss": None, "figures": {}, "busy": ""}
        self.assertEqual(benchmark.merits(nothing), "FOM ranks 1")

    def test_reframe(self):
        self.assertEqual(self.reframe.job.launcher, "local")
        self.assertTrue(self.reframe.loss_agrees_with_the_reference())
        self.reframe.find_figures()
        found = self.reframe.perf_variables
        self.assert_figures({name: value for name, (value, _) in found.items()})
        units = {name: found[name][1] for name in ("tokens_per_second", "step_ms", "seconds_per_20m_tokens", "loss")}
        self.assertEqual(list(units.values()), ["tokens/s", "ms", "s", "1"])
        failed = self.output.replace("\nPASSED\n", "\nFAILED: fixed: so\n")
        (self.folder / "output").write_text(failed)
        self.reframe.stdout, usual = str(self.folder / "output"), self.reframe.stdout
        self.addCleanup(setattr, self.reframe, "stdout", usual)
        self.assertFalse(self.reframe.loss_agrees_with_the_reference())

    def test_a_busy_machine(self):
        """ReFrame's report and JUBE's table show it."""
        words = "a rank had a processor for 42 % of its steps' time and 4.8 threads wanted the 2 processors of this host"
        (self.folder / "output").write_text(benchmark.merits(self.result | {"busy": words}) + "\n")
        usual = self.reframe.stdout, self.reframe.perf_variables
        self.addCleanup(lambda: vars(self.reframe).update(zip(("stdout", "perf_variables"), usual)))
        self.reframe.stdout, self.reframe.perf_variables = str(self.folder / "output"), {}
        self.reframe.find_figures()
        self.assertEqual(self.reframe.perf_variables["busy_machine"], (1, "1"))
        pattern = self.jube_patterns()["busy"]
        self.assertEqual(re.findall(pattern, f"FOM ranks 1\n\nout\n\n{busy.sentence(words)}\n\nPASSED\n"), [words])
        columns = (FILES / "jube" / "nanorun.yaml").read_text().partition("column: [")[2]
        self.assertIn("busy", re.findall(r"\w+", columns))

    def jube_patterns(self):
        text = (FILES / "jube" / "nanorun.yaml").read_text()
        section = text.split("\npatternset:")[1].split("\nanalyser:")[0]
        lines = re.findall(r"^ +- \{name: (\w+), (?:type: float, )?(?:unit: \w+, )?_: '?(.*?)'?\}$", section,
                           re.MULTILINE)
        self.assertEqual(len(lines), section.count("- {"), lines)
        return {name: pattern.replace("$jube_pat_fp", FLOAT) for name, pattern in lines}

    def test_jube(self):
        found = {name: re.findall(pattern, self.output) for name, pattern in self.jube_patterns().items()}
        self.assertEqual(found.pop("verdict"), ["PASSED"])
        self.assertEqual(found.pop("busy"), [self.result["busy"]] if self.result["busy"] else [])
        all_figures = {"loss"} | self.result["figures"].keys()
        self.assertLessEqual(found.keys(), all_figures)
        for name, values in found.items():
            known = self.known().get(name)
            self.assertEqual(len(values), known is not None, name)
            if values:
                self.assertAlmostEqual(float(values[0]) / known, 1, places=7, msg=name)
        verdict = self.jube_patterns()["verdict"]
        for last in ("FAILED: fixed: so", "NO REFERENCE: so"):
            self.assertEqual(re.findall(verdict, self.output.replace("\nPASSED\n", f"\n{last}\n")),
                             [last.partition(":")[0]])

    def test_ramble(self):
        """It matches each line from its start."""
        said = {name: [] for name in ("executable", "workload", "workload_variable", "figure_of_merit",
                                      "success_criteria")}

        def directive(name):
            return lambda *arguments, **options: said[name].append((arguments, options))

        application = {name: directive(name) for name in said} | {"ExecutableApplication": object}
        with_modules("benchmarks/benchpark/repo/nanorun/application.py", ramble={}, ramble__appkit=application)
        (name,), merit = said["figure_of_merit"][0]
        matches = [match for line in self.output.splitlines() if (match := re.match(merit["fom_regex"], line))]
        self.assert_figures({name.format(**match.groupdict()): float(match[merit["group_name"]]) for match in matches})
        (_, success), = said["success_criteria"]
        for text, count in ((self.output, 1), (self.output.replace("\nPASSED\n", "\nFAILED: so\n"), 0)):
            self.assertEqual(sum(re.match(success["match"], line) is not None for line in text.splitlines()), count)
        (_, command), = (arguments for arguments, _ in said["executable"])
        variables = {name for (name,), _ in said["workload_variable"]} | {"n_ranks"}
        self.assertEqual(set(re.findall(r"\{(\w+)\}", command)), variables)
        self.assertEqual([name for (name,), _ in said["workload"]], ["fixed", "weak"])

    def test_benchpark(self):
        variants = {}
        module = with_modules(
            "benchmarks/benchpark/experiments/nanorun/experiment.py", benchpark={},
            benchpark__experiment={"Experiment": type("Experiment", (), {})},
            benchpark__directives={"variant": lambda name, **options: variants.update({name: options})},
            benchpark__programming_model={"ProgrammingModel": lambda *kinds: type("Model", (), {}),
                                          "ProgrammingModelType": types.SimpleNamespace(Mpionly=1, Cuda=2)})
        for specification, resource, size in (({"workload=fixed"}, "n_ranks", "8"),
                                              ({"+cuda", "workload=weak"}, "n_gpus", "{n_ranks}")):
            experiment = module.Nanorun()
            experiment.spec = types.SimpleNamespace(satisfies=specification.__contains__)
            experiment.add_experiment_variable, experiment.set_required_variables = mock.Mock(), mock.Mock()
            experiment.compute_applications_section()
            self.assertEqual(experiment.add_experiment_variable.call_args_list[0].args, (resource, [1, 2, 4, 8]))
            self.assertEqual(experiment.set_required_variables.call_args.kwargs["total_problem_size"], size)
        package = next((ROOT / "spack").rglob("package.py")).read_text()
        for version in set(variants["version"]["values"]) - {"latest"}:
            self.assertIn(f'version("{version}", ', package)
        self.assertEqual(variants["workload"]["values"], ("fixed", "weak"))


class Runs(ToolTest):
    """The tools themselves, on one and two ranks."""

    def run_tool(self, *command, **variables):
        if shutil.which(command[0]) is None:
            self.skipTest(f"{command[0]} is not installed")
        job = deadline.run(list(map(str, command)), env=environment() | variables, text=True, timeout=240,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(job.returncode, 0, job.stdout)
        return job.stdout

    def test_jube(self):
        """With less work than `small` has; there is no reference for it, which is no error."""
        small_run.write_deck(self.folder)
        (self.folder / "tiny.toml").write_text(f"{FILE}\n[weak]\nsequences = 16\n")
        said = self.run_tool("jube", "run", FILES / "jube" / "nanorun.yaml", "-o", "out", "-r", "--hide-animation",
                             NANORUN_BENCHMARK_OPTIONS=options(self.folder / "tiny.toml"))
        rows = re.findall(r"(?m)^\| +(fixed|weak) \| +(\d) \| NO REFERENCE \| +([\d.]+) \| +[\d.]+ \|", said)
        expected = [("fixed", "1"), ("fixed", "2"), ("weak", "1"), ("weak", "2")]
        self.assertEqual([row[:2] for row in rows], expected, said)

    def test_reframe(self):
        said = self.run_tool("reframe", "-C", FILES / "reframe" / "settings.py", "-c",
                             FILES / "reframe" / "nanorun_test.py", "--system=here", "-P", "num_tasks=1,2", "-r",
                             "--performance-report", "--nocolor", "-S", f"options={options()}")
        self.assertIn("Ran 4/4 test case(s) from 4 check(s) (0 failure(s)", said)
        self.assertEqual(len(re.findall(r"(?m)^P: tokens_per_second: [\d.]+ tokens/s", said)), 4, said)


if __name__ == "__main__":
    small_run.main()
