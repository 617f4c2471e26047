#pragma once
// The file system by path. This module, output_file (files that grow or are replaced as a whole), files_own and
// file_lock alone open, list, create, rename and remove files, except those that HDF5 opens. No error is dropped: that
// a file is absent (ENOENT) is an answer, every other failure throws Error with the caller's code, naming the file and
// the system's reason. A file that the program writes is complete or absent. It replaces nothing but a regular file: no
// directory, device, FIFO or symbolic link is removed or renamed over.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.hpp"

namespace nanorun {

/// An Error whose reason passes by itself: another program has locked the file, the network has failed for a moment, or
/// a signal came.
class Busy : public Error {
 public:
  Busy(ExitCode code, const std::string& message) : Error(code, message) {}
};

/// Whether an errno is a reason that passes by itself: EAGAIN, EWOULDBLOCK, ENOLCK, ESTALE or EINTR.
bool passes(int reason);

// --- Looking ---------------------------------------------------------------------------------------------------------

enum class FileKind { absent, regular, directory, symlink, other };  ///< other: a device, FIFO or socket

/// The kind of what `path` names; symbolic links are followed.
FileKind kind_of(const std::string& path, ExitCode code);
/// The kind of what `path` names; symbolic links are not followed, but are FileKind::symlink.
FileKind kind_of_entry(const std::string& path, ExitCode code);

inline bool exists(const std::string& path, ExitCode code) { return kind_of(path, code) != FileKind::absent; }

/// Whether a regular file is there; throws where something else is, also a symbolic link.
bool has_file(const std::string& path, ExitCode code);

/// The size of a regular file in bytes.
std::uint64_t file_size(const std::string& path, ExitCode code);

/// The state of a file, which differs after the file was written or replaced.
struct FileState {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< time of the last change

  bool operator==(const FileState&) const = default;
};
FileState state_of(const std::string& path, ExitCode code);

/// Whether both paths exist and name the same file.
bool same_file(const std::string& a, const std::string& b, ExitCode code);

/// Names in a directory, sorted; empty where the directory is absent.
std::vector<std::string> list_directory(const std::string& path, ExitCode code);

/// Paths that match a glob pattern, sorted. A directory on the way that cannot be read is an error.
std::vector<std::string> glob_paths(const std::string& pattern, ExitCode code);

/// The path itself if something is there, or else the nearest directory above it that is there.
std::string existing_part(const std::string& path, ExitCode code);

/// Bytes that this user may still write on the file system of `path`.
std::uint64_t free_space(const std::string& path, ExitCode code);

/// The working directory, from which relative paths begin, without symbolic links.
std::string working_directory(ExitCode code);
/// The absolute path without links, "." and "..". The part of the path that does not exist stays as it is.
std::string canonical_path(const std::string& path, ExitCode code);

/// Throws where the path, or a name in it, is longer than Linux allows.
void require_possible_path(const std::string& path, ExitCode code);

/// The path's last component, and the path without it ("." where there is no other).
std::string name_of(const std::string& path);
std::string directory_of(const std::string& path);

// --- Reading ---------------------------------------------------------------------------------------------------------

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Opens a regular file for reading. Throws at once, and never waits, where `path` is a directory, device or FIFO.
Descriptor open_to_read(const std::string& path, ExitCode code);

/// Opens a directory, so that names_file() can tell later whether a path still names it.
Descriptor open_directory(const std::string& path, ExitCode code);

/// Throws where a regular file cannot be opened for writing. Changes nothing.
void require_writable(const std::string& path, ExitCode code);

/// Fills `bytes` with the file's bytes from `offset` on; throws where there are fewer.
void read_at(const Descriptor& file, const std::string& path, std::uint64_t offset, std::span<std::byte> bytes,
             ExitCode code);

/// The text of a regular file of at most max_bytes.
std::string read_text(const std::string& path, std::uint64_t max_bytes, ExitCode code);

/// read_text(), which also reads a pipe or socket that this process was started with, by a name such as /dev/stdin or
/// /dev/fd/63, to its end. Refuses any other FIFO, device or socket without waiting for it.
std::string read_input(const std::string& path, std::uint64_t max_bytes, ExitCode code);

// --- Writing ---------------------------------------------------------------------------------------------------------

/// Throws where files cannot be made in the directory, or where it is not there and cannot be created. Changes nothing.
void require_possible_directory(const std::string& path, ExitCode code);

/// Creates the directory and those above it, unless it is there. Throws where files cannot be made in it.
void make_directories(const std::string& path, ExitCode code);

/// Removes a regular file, if it is there. Throws where something else is there.
void remove_file(const std::string& path, ExitCode code);

/// Removes a directory, if it is there and empty.
void remove_empty_directory(const std::string& path, ExitCode code);

/// Creates an empty file. Replaces a regular file, which a run that was cut short may have left there.
void create_file(const std::string& path, ExitCode code);

/// Writes `text` over the beginning of a regular file, which is created if need be. Opens and closes the file, so that
/// network file systems show the text to other nodes.
void overwrite_start(const std::string& path, const std::string& text, ExitCode code);

/// Takes disk space for the first `bytes` of a file. Comes before HDF5 writes the file, since HDF5 cannot close a file
/// properly after a write has failed. Does nothing on file systems that cannot reserve space.
void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Sets the size of a file.
void truncate_file(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Returns when the contents of a file are on disk.
void sync_to_disk(const std::string& path, ExitCode code);

/// Returns when the names in a directory are on disk, or at once where its file system does not offer that.
void sync_directory(const std::string& path, ExitCode code);

/// Renames a file. Replaces a regular file of the new name. The new name is on disk when it returns.
void rename_file(const std::string& from, const std::string& to, ExitCode code);

/// The first of `path`.1, .2, ... that names nothing.
std::string free_name(const std::string& path, ExitCode code);

/// Renames a file or directory to free_name(path); returns the new path.
std::string set_aside(const std::string& path, ExitCode code);

/// Whether `path` names the open file or directory.
bool names_file(const std::string& path, const Descriptor& file, ExitCode code);

// --- For the modules that open files
// -----------------------------------------------------------------------------------

/// Throws Error(code) that names the path and the reason, an errno; Busy where passes(reason).
[[noreturn]] void fail_by_system(ExitCode code, const std::string& path, const std::string& what, int reason);

/// Throws unless `found`, the kind of what `path` names, is FileKind::regular.
void require_regular(const std::string& path, FileKind found, ExitCode code);
/// A kind in messages: "a directory", "a symbolic link".
const char* kind_text(FileKind kind);

/// Opens a regular file; refuses anything else without waiting for it. `flags` are those of open(2).
Descriptor open_regular(const std::string& path, int flags, ExitCode code);

/// Writes all bytes where the descriptor stands.
void write_all(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, ExitCode code);

/// Closes the file; some network file systems report only here that a write has failed.
void close_written(Descriptor& file, const std::string& path, ExitCode code);

/// Number of names (hard links) that the file has; 0 where it was removed.
std::uint64_t links_of(const Descriptor& file, const std::string& path, ExitCode code);

}  // namespace nanorun
