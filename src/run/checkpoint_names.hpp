#pragma once
// Names of checkpoint files, and the errors and warnings of the modules that handle a run's checkpoints.

#include <optional>
#include <string>

#include "src/base/error.hpp"
#include "src/comm/comm.hpp"

namespace nanorun {

/// "checkpoint_00000100.h5" for step 100.
std::string name_of_step(long step);

/// Step of a checkpoint by the name that the program gives it. Any other name, such as one with another number of
/// digits, is a user's own.
std::optional<long> step_of(const std::string& name);

/// Step of a checkpoint that is being written, or whose writing was cut short, by the name of its partial file.
std::optional<long> step_of_unfinished(const std::string& name);

/// Whether Open MPI gives the name to a file beside an unfinished checkpoint, which stays where a rank is killed.
bool is_lock_of_mpi(const std::string& name);

/// Error(checkpoint) that all ranks throw.
Error checkpoint_error(const std::string& message);

/// Collective or for one rank: rank 0 warns.
void warn(const Comm& comm, const std::string& message);

}  // namespace nanorun
