# SPDX-License-Identifier: BSD-3-Clause
from benchpark.directives import variant
from benchpark.experiment import Experiment
from benchpark.programming_model import ProgrammingModel, ProgrammingModelType


class Nanorun(Experiment, ProgrammingModel(ProgrammingModelType.Mpionly, ProgrammingModelType.Cuda)):
    variant("workload", default="fixed", values=("fixed", "weak"), description="fixed work, or one sequence per rank")
    variant("version", default="main", values=("main", "latest", "0.2.0"), description="version of nanorun")

    def compute_applications_section(self):
        cuda = self.spec.satisfies("+cuda")
        self.add_experiment_variable("n_gpus" if cuda else "n_ranks", [1, 2, 4, 8], named=True, matrixed=True)
        if cuda:
            self.add_experiment_variable("n_ranks", "{n_gpus}")
        weak = self.spec.satisfies("workload=weak")
        self.set_required_variables(n_resources="{n_ranks}", process_problem_size="1" if weak else "8 / {n_ranks}",
                                    total_problem_size="{n_ranks}" if weak else "8")

    def compute_package_section(self):
        self.add_package_spec(self.name, [f"nanorun{self.determine_version()} "])
