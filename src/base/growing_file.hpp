#pragma once
// A text file of a run, to which the run appends for as long as it lasts, whatever becomes of the file meanwhile.

#include <cstdint>
#include <string>

#include "src/base/output_file.hpp"

namespace nanorun {

class GrowingFile {
 public:
  /// Opens or creates the file. Throws Error(output).
  explicit GrowingFile(const std::string& path);

  /// Appends. Copies of the file by hard links stay as they are. If the file was removed, it is written again with all
  /// that it held; if it was moved and another file has its name, it grows where it is. Throws Error(output).
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
