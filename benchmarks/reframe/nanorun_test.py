"""jobscripts/benchmark.sh as a ReFrame test: fixed work, and work that grows with the ranks.

docs/benchmark_suites.md says how to run it.
"""

import os
import shlex

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.backends import getlauncher
from reframe.core.builtins import parameter, run_before, sanity_function, variable

VERDICT = r"^PASSED$"
FIGURE = r"^FOM (\w+) (\S+)$"
# By the name of a figure, or else by its end.
UNITS = {"tokens_per_second": "tokens/s", "joules_per_token": "J", "joules_per_step": "J", "tokens_per_wh": "tokens/Wh"}
ENDS = {"seconds": "s", "tokens": "s", "ms": "ms", "bytes": "B"}


@rfm.simple_test
class nanorun_benchmark(rfm.RunOnlyRegressionTest):
    descr = "trains a language model on synthetic tokens and checks the loss"
    valid_systems, valid_prog_environs = ["*"], ["*"]
    sourcesdir = None
    time_limit = "30m"
    kind = parameter(["fixed", "weak"])
    options = variable(str, value="")  # further options of benchmark.sh, such as --size or --program

    @run_before("run")
    def start_the_script_once(self):
        """It starts the ranks itself, with the launcher of the partition."""
        starter = "srun" if self.current_partition.launcher_type.registered_name == "srun" else "mpirun"
        self.job.launcher = getlauncher("local")()
        self.executable = shlex.quote(os.path.join(os.path.realpath(self.prefix), "../../jobscripts/benchmark.sh"))
        self.executable_opts = ["--out result", f"--launcher {starter}", f"--ranks {self.num_tasks}",
                                *(["--weak"] if self.kind == "weak" else []), self.options]

    @sanity_function
    def loss_agrees_with_the_reference(self):
        return sn.assert_found(VERDICT, self.stdout)

    @run_before("performance")
    def find_figures(self):
        found = sn.evaluate(sn.extractall(FIGURE, os.path.join(self.stagedir, str(self.stdout)), (1, 2)))
        for name, value in found:
            unit = UNITS.get(name, ENDS.get(name.rpartition("_")[2], "1"))
            self.perf_variables[name] = sn.make_performance_function(sn.defer(float(value)), unit)
