#include "src/run/log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"

namespace nanorun {

namespace {

/// mpirun gives rank 0 a pseudo-terminal for its standard output wherever that goes, but not for its standard error.
bool on_terminal() { return isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0; }

/// Whether the text is out, or else errno says why not.
bool put(const std::string& text) { return write_whole(STDOUT_FILENO, text); }

std::string output_failure() { return fmt::format("standard output cannot be written: {}", std::strerror(errno)); }

}  // namespace

bool write_output(const std::string& text) {
  if (put(text)) return true;
  if (errno == EPIPE) return false;
  throw Error(ExitCode::output, output_failure());
}

bool is_log(const std::string& path) {
  constexpr std::string_view begin = "nanorun ";
  return read_start(path, begin.size(), ExitCode::output) == begin;
}

Log::Log(bool active) : active_(active), terminal_(active && on_terminal()) {}

void Log::open(const std::string& file) {
  if (!active_) return;
  if (has_file(file, ExitCode::output)) clear_own_place(file, ExitCode::output, is_log);
  file_.emplace(file);
  file_->write(std::exchange(waiting_, ""));
}

void Log::line(const std::string& text) {
  if (!active_) return;
  const char* const clear = std::exchange(live_shown_, false) ? "\r\033[K" : "";
  if (!put(clear + text + "\n") && !std::exchange(unread_, true)) {
    warn(output_failure() + "; logging continues in log.txt only");
  }
  note(text);
}

void Log::note(const std::string& text) {
  if (!active_) return;
  try {
    if (file_) {
      file_->write(text + "\n");
    } else {
      waiting_ += text + "\n";
    }
  } catch (const Error& error) {
    if (warned_) return;
    warned_ = true;
    warn(fmt::format("{}; logging continues on standard output only", error.what()));
  }
}

void Log::live(const std::string& text) {
  if (!terminal_) return;
  live_shown_ = put("\r\033[K" + text);
}

}  // namespace nanorun
