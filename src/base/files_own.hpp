#pragma once
// Directories of a run's own below that of the run, as that of the heartbeats: no link in their place, or in that of a
// file in them, is followed. Part of src/base/files: errors are as there.

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

/// A directory that is open, so that whatever takes its place cannot lead elsewhere. Files in it are named without it.
class OwnDirectory {
 public:
  /// Throws where anything else is in its place, also a link to a directory.
  OwnDirectory(const std::string& path, ExitCode code);
  /// The same, and makes it where nothing is there. Throws where files cannot be made in it.
  static OwnDirectory make(const std::string& path, ExitCode code);

  /// Names in it, sorted.
  std::vector<std::string> list() const;
  /// A regular file of at most max_bytes as text.
  std::string read(const std::string& name, std::uint64_t max_bytes) const;
  /// Writes `text` over the beginning of a regular file, which is created if need be. Opens and closes the file, so
  /// that network file systems show the text to other nodes.
  void overwrite_start(const std::string& name, const std::string& text) const;
  /// Removes a regular file; does nothing where nothing is there, and throws where something else is.
  void remove(const std::string& name) const;

 private:
  Descriptor open(const std::string& name, int flags) const;
  [[noreturn]] void fail(const std::string& name, const std::string& what, int reason) const;
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  ExitCode code_;
  Descriptor directory_;
};

/// The path without links, "." and "..". Throws where nothing is there.
std::string real_path(const std::string& path, ExitCode code);

}  // namespace nanorun
