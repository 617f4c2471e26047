#pragma once
// The directory of a run's checkpoints where that is a link to a directory elsewhere, as on another file system: it is
// the run's alone, though it does not lie in the run's own directory, whose lock keeps other jobs away.

#include <optional>
#include <string>

#include "src/base/file_lock.hpp"

namespace nanorun {

/// The run that has its checkpoints in `directory`, as a part of its own directory or by a link; empty where none has.
/// What cannot be looked up counts as none.
std::string run_with_checkpoints_in(const std::string& directory);

class CheckpointPlace {
 public:
  /// For rank 0, before files in `directory` are read, written or removed; that is <run>/checkpoints. Where it is a
  /// link, locks the directory to which it leads, and notes there whose it is, until it leads elsewhere. Throws
  /// Error(checkpoint) where it leads to no directory, into the directory of another run or to where another run has
  /// or had its checkpoints, or where another job holds the lock.
  void enter(const std::string& directory);

  /// Throws as enter() does where the directory is not the run's alone. Takes no lock and changes nothing.
  static void examine(const std::string& directory);

 private:
  std::string locked_;  ///< path without links
  std::optional<FileLock> lock_;
};

}  // namespace nanorun
