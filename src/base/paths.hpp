#pragma once
// What paths name: kinds, sizes and states of files, the names in directories, and paths themselves. Nothing here
// changes a file. That a file is absent (ENOENT) is an answer; every other failure throws Error with the caller's code,
// naming the file and the system's reason.

#include <cstdint>
#include <string>
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

/// Throws Error(code) that names the path and the reason, an errno; Busy where passes(reason).
[[noreturn]] void fail_by_system(ExitCode code, const std::string& path, const std::string& what, int reason);

enum class FileKind { absent, regular, directory, symlink, other };  ///< other: a device, FIFO or socket

/// The kind of what `path` names; symbolic links are followed.
FileKind kind_of(const std::string& path, ExitCode code);
/// The kind of what `path` names; symbolic links are not followed, but are FileKind::symlink.
FileKind kind_of_entry(const std::string& path, ExitCode code);

/// The kind that a file's mode says, as stat(2) gives it.
FileKind kind_of_mode(std::uint32_t mode);

inline bool exists(const std::string& path, ExitCode code) { return kind_of(path, code) != FileKind::absent; }

/// Whether a regular file is there; throws where something else is, also a symbolic link.
bool has_file(const std::string& path, ExitCode code);

/// Throws unless `found`, the kind of what `path` names, is FileKind::regular.
void require_regular(const std::string& path, FileKind found, ExitCode code);

/// A kind in messages: "a directory", "a symbolic link".
const char* kind_text(FileKind kind);

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

/// What the system meets on its way to a file: the absolute paths, without links before the last name, of the
/// directories and links on it and of the file itself, as far as there is something.
std::vector<std::string> entries_on_the_way(const std::string& path, ExitCode code);

/// Throws where the path, or a name in it, is longer than Linux allows.
void require_possible_path(const std::string& path, ExitCode code);

/// The path's last component, and the path without it ("." where there is no other).
std::string name_of(const std::string& path);
std::string directory_of(const std::string& path);

}  // namespace nanorun
