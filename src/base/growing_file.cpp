#include "src/base/growing_file.hpp"

#include <fmt/format.h>

#include <utility>

#include "src/base/error.hpp"

namespace nanorun {

GrowingFile::GrowingFile(const std::string& path) : path_(path), file_(path, ExitCode::output) {}

void GrowingFile::unshare() {
  if (file_.links() > 1 && file_.in_place()) file_ = AppendFile(path_, ExitCode::output);
}

void GrowingFile::write(const std::string& text) {
  unshare();
  file_.write(text);
  if (file_.in_place()) return;
  if (exists(path_, ExitCode::output)) {
    if (file_.links() > 0) return;
    throw Error(ExitCode::output, path_ + ": was replaced by another file");
  }
  AppendFile anew(path_, ExitCode::output);
  anew.write(file_.text());
  file_ = std::move(anew);
  warn(fmt::format("{}: was removed during the run; it is written again", path_));
}

void GrowingFile::shorten(std::uint64_t bytes) {
  unshare();
  if (file_.in_place()) truncate_file(path_, bytes, ExitCode::output);
}

}  // namespace nanorun
