#pragma once
// The directory of a run's checkpoints where that is a link to a directory elsewhere, as on another file system. The
// lock of the run's own directory does not cover it, so it has a lock of its own, which names the run.

#include <optional>
#include <string>

#include "src/base/file_lock.hpp"

namespace nanorun {

/// The run that has its checkpoints in `directory`, as a part of its own directory or by a link; empty where there is
/// none, or where the file system does not tell.
std::string run_with_checkpoints_in(const std::string& directory);

class CheckpointLink {
 public:
  /// For rank 0, before files in `directory`, <run>/checkpoints, are read, written or removed. Where that is a link,
  /// locks the directory to which it leads, until it leads elsewhere, and notes the run in the lock file. Throws
  /// Error(checkpoint) where the link leads to no directory, into another run's directory or to a directory with the
  /// checkpoints of another run, or where another job holds the lock.
  void enter(const std::string& directory);

  /// Throws as enter() does where the directory is not free for this run. Takes no lock and changes nothing.
  static void examine(const std::string& directory);

 private:
  std::string locked_;  ///< canonical path of the directory
  std::optional<FileLock> lock_;
};

}  // namespace nanorun
