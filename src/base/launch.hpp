#pragma once
// What this process knows of the launcher that started it, before and beside MPI.

#include <map>
#include <string>

namespace nanorun {

/// The name of the node that this process runs on.
std::string host_name();

/// The number of the batch job that this process is part of; empty outside of a job.
std::string job_id();

/// The environment variables by which launchers tell what they have started, as far as they are set. Every program that
/// is started from a terminal of Slurm's inherits SLURM_PTY_PORT; it counts only if a user may have typed this command.
using LaunchVariables = std::map<std::string, std::string>;
/// Called before MPI_Init, which sets some of them itself if no launcher has.
LaunchVariables launch_variables();

/// Where srun has started this process without PMIx, lets it start alone: an MPI that needs PMIx would end the program
/// instead. Called before MPI_Init.
void leave_step_without_pmix(const LaunchVariables& variables);

/// A message where a launcher has started several ranks, by its variables, but this MPI has not joined them: names the
/// variable and says how to start instead. Else empty. `ranks`: of MPI_COMM_WORLD. `mpi`: name and version of the MPI
/// library.
std::string unjoined_launcher(int ranks, const std::string& mpi, const LaunchVariables& variables);

}  // namespace nanorun
