#pragma once
// The file system by path: the only room that opens, lists, creates, renames and removes files other than HDF5's own.
// No error is dropped: a file that is not there (ENOENT) is an answer, every other failure throws Error with the
// caller's code, naming the file and the system's reason. What the program writes is complete or absent, and takes the
// place of nothing but a regular file: no directory, device, FIFO or symbolic link is removed or renamed over.
// src/base/output_file has the files that grow or are replaced as a whole, src/base/file_lock the locks.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.hpp"

namespace nanorun {

/// Thrown in place of Error where the system's reason is one that passes: another program holds the file, the network
/// has failed for a moment, or a signal came.
class Busy : public Error {
 public:
  Busy(ExitCode code, const std::string& message) : Error(code, message) {}
};

/// Whether an error number of the system's is such a reason: EAGAIN, EWOULDBLOCK, ENOLCK, ESTALE or EINTR.
bool passes(int reason);

// --- Looking ---------------------------------------------------------------------------------------------------------

enum class FileKind { absent, regular, directory, symlink, other };  ///< other: a device, FIFO or socket

/// What `path` names, symbolic links followed.
FileKind kind_of(const std::string& path, ExitCode code);
/// The same, but a symbolic link is one.
FileKind kind_of_entry(const std::string& path, ExitCode code);

inline bool exists(const std::string& path, ExitCode code) { return kind_of(path, code) != FileKind::absent; }

/// Whether a regular file of the program's own is there; throws where something else is.
bool has_file(const std::string& path, ExitCode code);

/// Of a regular file, in bytes.
std::uint64_t file_size(const std::string& path, ExitCode code);

/// Changes when a file is written or replaced.
struct FileState {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of the last change

  bool operator==(const FileState&) const = default;
};
FileState state_of(const std::string& path, ExitCode code);

/// Whether both paths exist and name the same file.
bool same_file(const std::string& a, const std::string& b, ExitCode code);

/// Names in a directory, sorted; none where the directory is absent.
std::vector<std::string> list_directory(const std::string& path, ExitCode code);

/// Paths that match a glob pattern, sorted. A directory on the way that cannot be read is an error.
std::vector<std::string> glob_paths(const std::string& pattern, ExitCode code);

/// Bytes that this user may still write on the file system of `path`.
std::uint64_t free_space(const std::string& path, ExitCode code);

/// Where relative paths begin, without symbolic links.
std::string working_directory(ExitCode code);
/// Absolute, without links, "." and "..", as far as the path exists; the path itself where it cannot be looked up.
std::string canonical_path(const std::string& path);

/// Throws where the path, or a name in it, is longer than Linux allows; whether anything is there does not matter.
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

/// Opens a directory, which names_file() then knows again wherever it is moved.
Descriptor open_directory(const std::string& path, ExitCode code);

/// Throws where a regular file cannot be opened for writing; changes nothing.
void require_writable(const std::string& path, ExitCode code);

/// Fills `bytes` with the file's bytes from `offset` on; throws where there are fewer.
void read_at(const Descriptor& file, const std::string& path, std::uint64_t offset, std::span<std::byte> bytes,
             ExitCode code);

/// A regular file of at most max_bytes as text.
std::string read_text(const std::string& path, std::uint64_t max_bytes, ExitCode code);

/// The same, or all that comes through a pipe or socket that this process was started with, by a name such as
/// /dev/stdin or /dev/fd/63. Any other FIFO, device or socket is refused without waiting for it.
std::string read_input(const std::string& path, std::uint64_t max_bytes, ExitCode code);

// --- Writing ---------------------------------------------------------------------------------------------------------

/// Creates the directory and those above it; does nothing where it is there. Throws where files cannot be made in it.
void make_directories(const std::string& path, ExitCode code);

/// Removes a regular file; does nothing where nothing is there, and throws where something else is.
void remove_file(const std::string& path, ExitCode code);

/// Removes a directory that is empty; does nothing where it is not, or not there.
void remove_empty_directory(const std::string& path, ExitCode code);

/// Creates an empty file of this program's own, in place of a regular file that a run which was cut short may have left
/// there.
void create_file(const std::string& path, ExitCode code);

/// Writes `text` over the beginning of a regular file, which is created if need be. Opens and closes the file, so that
/// network file systems show the text to other nodes.
void overwrite_start(const std::string& path, const std::string& text, ExitCode code);

/// Takes disk space for the first `bytes` of a file; done before HDF5 writes the file, which cannot give up in order
/// when a write fails. Does nothing on file systems that cannot reserve space.
void reserve_space(const std::string& path, std::uint64_t bytes, ExitCode code);

void truncate_file(const std::string& path, std::uint64_t bytes, ExitCode code);

/// Returns when the contents of a file are on disk.
void sync_to_disk(const std::string& path, ExitCode code);

/// Returns when the names in a directory are on disk, or at once where its file system does not offer that.
void sync_directory(const std::string& path, ExitCode code);

/// Gives a file its final name, in place of any regular file of that name; the name is on disk when it returns.
void rename_file(const std::string& from, const std::string& to, ExitCode code);

/// `path`.1, .2, ..., the first where nothing is.
std::string free_name(const std::string& path, ExitCode code);

/// Moves a file or directory to free_name(path); returns the new path.
std::string set_aside(const std::string& path, ExitCode code);

/// Whether `path` names the open file or directory.
bool names_file(const std::string& path, const Descriptor& file, ExitCode code);

// --- For the rooms of files alone ------------------------------------------------------------------------------------

/// Throws Error(code) that names the path and the system's reason, an error number; Busy where that may pass.
[[noreturn]] void fail_by_system(ExitCode code, const std::string& path, const std::string& what, int reason);

/// Throws unless what was found is a regular file; "a directory", "a symbolic link" and so on, for messages.
void require_regular(const std::string& path, FileKind found, ExitCode code);
const char* kind_text(FileKind kind);

/// Opens a regular file, whatever kind of file `path` names without waiting for it. `flags` are those of open(2).
Descriptor open_regular(const std::string& path, int flags, ExitCode code);

void write_all(const Descriptor& file, const std::string& path, std::span<const std::byte> bytes, ExitCode code);

/// Closes the file; some network file systems report only here that a write has failed.
void close_written(Descriptor& file, const std::string& path, ExitCode code);

/// Names that the file has, in whatever directories; 0 where it was removed.
std::uint64_t links_of(const Descriptor& file, const std::string& path, ExitCode code);

}  // namespace nanorun
