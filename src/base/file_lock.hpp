#pragma once
// Locks on files, as flock(2) gives them.

#include <optional>
#include <string>

#include "src/base/files.hpp"

namespace nanorun {

/// Whether a lock is free or held; absent: the file system has no locks.
enum class LockState { free, held, absent };

/// shared: for readers, of which several may hold the lock; exclusive: for one writer.
enum class LockKind { shared, exclusive };

/// Tries to lock a regular file by flock(2), and releases the lock at once. free: the lock was given. absent: it was
/// refused as not supported, or three times in 20 ms for want of locks (ENOLCK). Throws Busy(code) where the file
/// system does not tell, as on a stale handle.
LockState lock_state(const std::string& path, LockKind kind, ExitCode code);

/// An exclusive lock on a file, held until destruction or the end of the process, however it ends. It relies on
/// flock(2), which NFS and Lustre (mounted with -o flock) extend over nodes. The lock of a crashed node ends when the
/// file server notices the crash, on NFS 4 after the lease time. If the lock file has further hard links, as after cp
/// -al, this path gets a new file, and the other names keep the old one.
class FileLock {
 public:
  /// Creates the file if need be and writes `note` into it once it has the lock. Waits a few seconds for the lock,
  /// which a dying job may still hold. If another process holds it even then, this object has no lock, and held_by() is
  /// the note of that process. Throws Error(code) if the file cannot be made, Busy(code) if the file system does not
  /// tell whether the lock is free.
  FileLock(const std::string& path, const std::string& note, ExitCode code);

  /// The note of the process that holds the lock; absent where this object holds it.
  const std::optional<std::string>& held_by() const { return held_by_; }
  /// Whether another process holds the lock, and may have opened the file by another name: it has further hard links.
  bool held_elsewhere() const { return held_by_ && shared_; }
  /// Whether the file held a note before, so that another process has had the lock.
  bool was_used() const { return used_; }
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
  bool used_ = false;
  bool supported_ = true;
  std::optional<std::string> held_by_;
};

}  // namespace nanorun
