#pragma once
// What this process knows of the launcher that started it, before and beside MPI.

#include <functional>
#include <string>

namespace nanorun {

/// Of the node of this process.
std::string host_name();

/// Where the environment says that a launcher has started several ranks, none of which this MPI has joined: the
/// message that names its variable and says how to start instead; else empty. `ranks`: of MPI_COMM_WORLD. `mpi`: name
/// and version of the MPI library. `variable` gives the value of an environment variable, or null.
std::string unjoined_launcher(int ranks, const std::string& mpi,
                              const std::function<const char*(const char*)>& variable);

}  // namespace nanorun
