#pragma once
// A text file to which a run appends until it ends, even if the file is moved, copied or removed meanwhile.

#include <cstdint>
#include <string>

#include "src/base/output_file.hpp"

namespace nanorun {

class GrowingFile {
 public:
  /// Opens or creates the file. Throws Error(output).
  explicit GrowingFile(const std::string& path);

  /// Appends text. Copies of the file by hard links do not change. If the file was removed, it is written again with
  /// all that it held. If it was moved and another file has its name, it grows under its new name. Throws
  /// Error(output).
  void write(const std::string& text);

  /// Everything that the file holds.
  std::string text() const { return file_.text(); }
  /// Cuts the file to its first `bytes`, unless it was removed or moved. Throws Error(output).
  void shorten(std::uint64_t bytes);

 private:
  void unshare();

  std::string path_;
  AppendFile file_;
};

}  // namespace nanorun
