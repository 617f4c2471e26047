#pragma once
// What the lock files of runs say: who holds the lock, and in a directory of checkpoints, to which a link of a run
// leads, also the run's directory. "job 17, process 4711 on node n1; checkpoints of /data/outputs/first"

#include <string>

#include "src/base/error.hpp"

namespace nanorun {

/// This process, as lock files name it: the batch job where there is one, process and node.
std::string own_name();

/// Whether a text may be that of a lock file, also of earlier programs.
bool is_lock_text(const std::string& text);

/// What a lock file says before the run's directory, where the locked directory has the checkpoints of a run elsewhere.
inline constexpr const char* checkpoints_of = "; checkpoints of ";

/// The directory of the run to which the locked checkpoints belong; empty where the lock is that of a run's directory.
std::string owner_in_lock(const std::string& text);

/// Whether files with the names of checkpoints lie in the directory itself.
bool holds_checkpoints(const std::string& directory, ExitCode code);

}  // namespace nanorun
