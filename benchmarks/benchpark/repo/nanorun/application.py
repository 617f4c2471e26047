# SPDX-License-Identifier: BSD-3-Clause
from ramble.appkit import *


class Nanorun(ExecutableApplication):
    """Trains a language model on synthetic tokens and checks the loss."""

    name = "nanorun"
    tags = ["ai", "training", "mpi", "multi-node", "gpu", "c++", "cuda"]

    # The script starts the ranks itself. A directory of results takes one result.
    executable("benchmark", '"$(dirname "$(command -v nanorun)")/../share/nanorun/jobscripts/benchmark.sh" '
               "--out result-$(date +%s) --launcher {launcher} --ranks {n_ranks} {options}", use_mpi=False)
    workload("fixed", executables=["benchmark"])
    workload("weak", executables=["benchmark"])
    workload_variable("launcher", default="srun", description="srun or mpirun", workloads=["fixed", "weak"])
    workload_variable("options", default="", description="options of benchmark.sh", workloads=["fixed"])
    workload_variable("options", default="--weak", description="options of benchmark.sh", workloads=["weak"])

    figure_of_merit("{name}", fom_regex=r"FOM (?P<name>\w+) (?P<value>\S+)", group_name="value", units="")
    success_criteria("passed", mode="string", match=r"PASSED$", file="{log_file}")
