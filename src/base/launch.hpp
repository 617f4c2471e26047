#pragma once
// What this process knows of the launcher that started it, before and beside MPI.

#include <map>
#include <string>

namespace nanorun {

/// Of the node of this process.
std::string host_name();

/// Variables of the environment by which launchers tell what they have started, those that are set. SLURM_PTY_PORT,
/// which all programs inherit that are started in a terminal of Slurm's, only where this one may have been typed there.
using LaunchVariables = std::map<std::string, std::string>;
/// Comes before MPI_Init, which sets some itself where no launcher has.
LaunchVariables launch_variables();

/// Lets this process start alone where srun has started it without PMIx, for an MPI that needs it and would end the
/// program instead. Comes before MPI_Init.
void leave_step_without_pmix(const LaunchVariables& variables);

/// Where the variables say that a launcher has started several ranks, none of which this MPI has joined: the
/// message that names its variable and says how to start instead; else empty. `ranks`: of MPI_COMM_WORLD. `mpi`: name
/// and version of the MPI library.
std::string unjoined_launcher(int ranks, const std::string& mpi, const LaunchVariables& variables);

}  // namespace nanorun
