#pragma once
// The directory of a run's checkpoints if it is a link, for example to another file system. The lock of the run's own
// directory does not cover the directory behind the link. So that directory has its own lock, which names the run.

#include <optional>
#include <string>

#include "src/base/file_lock.hpp"

namespace nanorun {

/// Directory of the run that has its checkpoints in `directory`, either within its own directory or through a link.
/// Empty where there is no such run, or where the file system does not tell.
std::string run_with_checkpoints_in(const std::string& directory);

class CheckpointLink {
 public:
  /// For rank 0, before files in `directory`, <run>/checkpoints, are read, written or removed. If it is a link, locks
  /// the directory behind it until the link leads elsewhere, and names the run in the lock file. Throws
  /// Error(checkpoint) where the link leads to no directory, into another run's directory or to a directory with the
  /// checkpoints of another run, or where another job holds the lock.
  void enter(const std::string& directory);

  /// Throws what enter() would throw. Takes no lock and changes nothing. Returns false where `directory` is a link and
  /// no lock file says whose the directory behind it is.
  static bool examine(const std::string& directory);

 private:
  std::string locked_;  ///< canonical path of the directory
  std::optional<FileLock> lock_;
};

}  // namespace nanorun
