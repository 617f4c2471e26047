#pragma once
// Directories inside a run's directory that belong to the run alone, such as that of the heartbeats: a symbolic link in
// place of such a directory, or of a file in it, is not followed. Errors are those of src/base/files.hpp.

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

/// Throws where the path names anything but a regular file, or a directory, whichever is `wanted`, or nothing.
void require_own_place(const std::string& path, FileKind wanted, ExitCode code);

/// A directory that is held open. If its path names something else later, such as a link, files are still written into
/// this directory. Their names are given without the directory.
class OwnDirectory {
 public:
  /// Opens the directory. Throws where `path` names anything else, also a link to a directory.
  OwnDirectory(const std::string& path, ExitCode code);
  /// Opens the directory, which it creates if need be. Throws where files cannot be made in it.
  static OwnDirectory make(const std::string& path, ExitCode code);

  /// The names in the directory, sorted.
  std::vector<std::string> list() const;
  /// The text of a regular file of at most max_bytes.
  std::string read(const std::string& name, std::uint64_t max_bytes) const;
  /// Writes `text` over the beginning of a regular file, which is created if need be. Opens and closes the file, so
  /// that network file systems show the text to other nodes.
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
