#pragma once
// What this process knows of the launcher that started it, before and beside MPI.

#include <map>
#include <string>

namespace nanorun {

/// The name of the node that this process runs on.
std::string host_name();

/// The number of the batch job that this process is part of; empty outside of a job.
std::string job_id();

/// Environment variables, as far as they are set, by which launchers say what they have started. Every program that
/// starts from a terminal of Slurm inherits SLURM_PTY_PORT; it counts only if a user may have typed this command.
using LaunchVariables = std::map<std::string, std::string>;
/// Called before MPI_Init, which sets some of them itself if no launcher has.
LaunchVariables launch_variables();

/// Lets Open MPI start a process that no launcher of its own has started without a daemon beside it, which a single
/// process needs only to spawn others. Called before MPI_Init.
void start_without_daemon(const LaunchVariables& variables);

/// If srun has started this process without PMIx, lets MPI start it as a single process: an MPI that needs PMIx would
/// end the program instead. Called before MPI_Init.
void leave_step_without_pmix(const LaunchVariables& variables);

/// A message if a launcher has started several ranks, by its variables, but this MPI has not joined them: it names the
/// variable and says how to start instead. Else empty. `ranks`: size of MPI_COMM_WORLD. `mpi`: name and version of the
/// MPI library.
std::string unjoined_launcher(int ranks, const std::string& mpi, const LaunchVariables& variables);

}  // namespace nanorun
