#pragma once
// Locks on files, as flock(2) gives them.

#include <optional>
#include <string>

#include "src/base/files.hpp"

namespace nanorun {

/// absent: the file system has no such locks, whatever words it has for that.
enum class LockState { free, held, absent };

/// What flock(2) says of a lock on a regular file, one for this process alone where `exclusive`, else one beside other
/// readers. Keeps none. Throws Busy(code) where the file system does not say, as on a stale handle.
LockState lock_state(const std::string& path, bool exclusive, ExitCode code);

/// An exclusive lock on a file, held until destruction or the end of the process, whichever way that ends. Relies on
/// flock(2), which NFS and Lustre (mounted with -o flock) extend over nodes; the lock of a crashed node ends when the
/// file server notices, on NFS 4 after its lease time. A lock file with further hard links, as in a copy by cp -al, is
/// replaced by one of this path alone; its other names keep it as it is.
class FileLock {
 public:
  /// Creates the file if need be. Where another process holds the lock for longer than the few seconds that a dying job
  /// may take, held_by() is what that process noted, else `note` goes into the file. Throws Error(code) if there can be
  /// no file, Busy(code) where the file system does not say for as long whether the lock is free.
  FileLock(const std::string& path, const std::string& note, ExitCode code);

  const std::optional<std::string>& held_by() const { return held_by_; }
  /// Whether the file that another process has locked has further hard links, so that its path may be another.
  bool held_elsewhere() const { return held_by_ && shared_; }
  /// False on a file system without locks.
  bool supported() const { return supported_; }
  /// Whether the path still names the locked file.
  bool in_place() const { return names_file(path_, file_, code_); }

 private:
  bool try_lock();
  void unshare();

  std::string path_;
  ExitCode code_;
  Descriptor file_;
  bool shared_ = false;
  bool supported_ = true;
  std::optional<std::string> held_by_;
};

}  // namespace nanorun
