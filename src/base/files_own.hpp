#pragma once
// Places inside a run's directory that belong to the run alone: what else stands there is refused or kept under another
// name. In a directory such as that of the heartbeats no symbolic link is followed. Errors are those of
// src/base/files.hpp.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

/// Bytes of a file of a run, at most, that is read as a whole.
inline constexpr std::uint64_t max_run_file = 1u << 30;

/// Throws where the path names anything but a regular file, or a directory, whichever is `wanted`, or nothing.
void require_own_place(const std::string& path, FileKind wanted, ExitCode code);

/// Whether the run has written the regular file at a path, which is not empty. May throw Error to say why not.
using IsOwn = std::function<bool(const std::string& path)>;

/// Makes the place of a file of the run free: renames what stands at `path` to free_name(path), of a link the link
/// itself, and warns. Leaves an empty regular file, and one for which is_own() returns true, since they may be
/// replaced.
void clear_own_place(const std::string& path, ExitCode code, const IsOwn& is_own);

/// The warning of clear_own_place(); empty where it would rename nothing. Changes nothing.
std::string foreign_warning(const std::string& path, ExitCode code, const IsOwn& is_own);

/// clear_own_place() for a file that is written in one go under this name and then renamed: only an empty one stays.
void clear_own_partial(const std::string& partial, ExitCode code);

/// Why what stands at `path`, or will, can get no other name, nor be removed: the directory cannot be written, it has
/// the sticky bit and another user owns the file, the file is immutable, or it is a mount point. Empty where nothing
/// speaks against it.
std::string obstacle_to_renaming(const std::string& path, ExitCode code);

/// Throws where there is an obstacle_to_renaming() of a file that the run replaces.
void require_movable(const std::string& path, ExitCode code);

/// Whether a message ends with the system's reason that something is not permitted: by permissions, by chattr, or on a
/// file system that is mounted for reading alone.
bool is_denial(std::string_view message);

/// The result of a look at what a run needs. Where the system does not permit it, adds to the Error what to do.
template <class Look>
auto with_remedy(const char* remedy, Look&& look) {
  try {
    return look();
  } catch (const Error& error) {
    if (!is_denial(error.what())) throw;
    throw Error(error.code(), fmt::format("{}: {}", error.what(), remedy));
  }
}

/// A directory that is held open. If its path names something else later, such as a link, files are still written into
/// this directory. Their names are given without the directory.
class OwnDirectory {
 public:
  /// Opens the directory. Throws where `path` names anything else, also a link to a directory.
  OwnDirectory(const std::string& path, ExitCode code);
  /// Opens the directory, which it creates if need be. Throws where files cannot be made in it.
  static OwnDirectory make(const std::string& path, ExitCode code);

  /// Whether anything has the name.
  bool has(const std::string& name) const;
  /// The names in the directory, sorted.
  std::vector<std::string> list() const;
  /// The text of a regular file of at most max_bytes.
  std::string read(const std::string& name, std::uint64_t max_bytes) const;
  /// Writes `text` over the beginning of a regular file, which is created if need be. Opens and closes the file, so
  /// that network file systems show the text to other nodes. A file with further names (hard links) keeps these and
  /// what it holds, and a new one takes its place.
  void overwrite_start(const std::string& name, const std::string& text) const;
  /// Removes a regular file, if it is there. Throws where something else is there.
  void remove(const std::string& name) const;

 private:
  Descriptor open(const std::string& name, int flags) const;
  [[noreturn]] void fail(const std::string& name, const std::string& what, int reason) const;
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  ExitCode code_;
  Descriptor directory_;
};

}  // namespace nanorun
