#pragma once
// Locks on files, as flock(2) gives them.

#include <optional>
#include <string>

#include "src/base/files.hpp"

namespace nanorun {

/// absent: the file system has no such locks.
enum class LockState { free, held, absent };

/// shared: for readers, of which several may hold the lock; exclusive: for one writer.
enum class LockKind { shared, exclusive };

/// Tries to lock a regular file by flock(2), and releases the lock at once. free: the lock was given. absent: it was
/// refused as not supported, or three times in 20 ms for want of locks (ENOLCK). Throws Busy(code) where the file
/// system does not tell, as on a stale handle.
LockState lock_state(const std::string& path, LockKind kind, ExitCode code);

/// An exclusive lock on a file, held until destruction or the end of the process, however that ends. Relies on
/// flock(2), which NFS and Lustre (mounted with -o flock) extend over nodes; the lock of a crashed node ends when the
/// file server notices, on NFS 4 after its lease time. A lock file with further hard links, as in a copy by cp -al, is
/// replaced by a new file of this path alone; the other names keep the old one.
class FileLock {
 public:
  /// Creates the file if need be, waits for the lock as long as a dying job may hold it, a few seconds, and writes
  /// `note` into the file. Where another process still holds the lock then, held_by() is the note of that process
  /// instead. Throws Error(code) if the file cannot be made, Busy(code) if the file system does not tell whether the
  /// lock is free.
  FileLock(const std::string& path, const std::string& note, ExitCode code);

  /// The note of the process that holds the lock; absent where this object holds it.
  const std::optional<std::string>& held_by() const { return held_by_; }
  /// Whether another process holds the lock and the file has further hard links, by one of which that process may know
  /// it.
  bool held_elsewhere() const { return held_by_ && shared_; }
  /// False where the file system has no locks.
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
