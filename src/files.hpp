#pragma once
// File operations behind outputs that must be complete or absent. Failures throw Error with the caller's code, naming
// the file and the system's reason.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "src/error.hpp"

namespace nanorun {

/// Takes disk space for the first `bytes` of a file, created if need be; done before HDF5 writes the file, which cannot
/// give up in order when a write fails. Does nothing on file systems that cannot reserve space.
void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Returns when the contents of a file, or the names in a folder, are on disk.
void sync_to_disk(const std::string& path, ExitCode code);

std::uint64_t file_size(const std::string& path, ExitCode code);

/// Gives a file its final name, in place of any file of that name; the name is on disk when it returns.
void rename_file(const std::string& from, const std::string& to, ExitCode code);

/// Replaces `path` by what write(partial) puts into the file `path`.partial: that is flushed to disk, then renamed.
/// Where anything throws, the partial file is removed and `path` stays as it was.
template <class Write>
void replace_file(const std::string& path, ExitCode code, Write&& write) {
  const std::string partial = path + ".partial";
  try {
    write(partial);
    sync_to_disk(partial, code);
    rename_file(partial, path, code);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

/// The same where the file is to hold `text`.
void replace_text(const std::string& path, ExitCode code, const std::string& text);

/// An exclusive lock on a file, held until destruction or the end of the process, whichever way that ends. Relies on
/// flock(2), which NFS and Lustre (mounted with -o flock) extend over nodes; the lock of a crashed node ends when the
/// file server notices, on NFS 4 after its lease time.
class FileLock {
 public:
  /// Creates the file if need be. Where another process holds the lock for longer than the few seconds that a dying job
  /// may take, held_by() is what that process noted, else `note` goes into the file. Throws Error(code) if there can be
  /// no file.
  FileLock(const std::string& path, const std::string& note, ExitCode code);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;

  const std::optional<std::string>& held_by() const { return held_by_; }
  /// False on a file system without locks.
  bool supported() const { return supported_; }

 private:
  int descriptor_;
  bool supported_ = true;
  std::optional<std::string> held_by_;
};

}  // namespace nanorun
