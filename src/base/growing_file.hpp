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

  /// Appends. A copy by hard links keeps what it has. A file that was removed is written again, with all that it held;
  /// one that was moved away grows where it is, if another file has its name. Throws Error(output).
  void write(const std::string& text);

  /// Everything that the file holds.
  std::string text() const { return file_.text(); }
  /// Drops what lies behind the first bytes, unless the file was removed or moved away. Throws Error(output).
  void shorten(std::uint64_t bytes);

 private:
  void unshare();

  std::string path_;
  AppendFile file_;
};

}  // namespace nanorun
