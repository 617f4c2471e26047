#include "src/run_folder.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "src/error.hpp"

namespace nanorun {

namespace {

constexpr const char* lock_name = "lock";
constexpr std::uint64_t max_text = 1u << 30;  ///< bytes of a file that read() takes

/// Who runs: the batch job where there is one, host and process.
std::string own_name() {
  std::string text;
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"}) {
    const char* id = std::getenv(variable);
    if (id != nullptr && text.empty()) text = fmt::format("job {}, ", id);
  }
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return text + fmt::format("process {} on host {}", ::getpid(), host);
}

}  // namespace

RunFolder::RunFolder(Comm& comm, const Config& config)
    : comm_(comm),
      path_(config.run.outputs + "/" + config.run.name),
      stop_file_(config.stop.file.empty() ? file("stop") : config.stop.file) {
  comm_.together([&] {
    if (!comm_.root()) return;
    made_ = !exists(path_, ExitCode::output);
    make_directories(path_, ExitCode::output);
    lock();
  });
}

RunFolder::~RunFolder() {
  if (!made_) return;
  quietly([&] {
    if (list_directory(path_, ExitCode::output) != std::vector<std::string>{lock_name}) return;
    remove_file(file(lock_name), ExitCode::output);
    remove_empty_directory(path_, ExitCode::output);
  });
}

void RunFolder::lock() {
  const FileLock& lock = locks_.emplace_back(file(lock_name), own_name(), ExitCode::output);
  if (lock.held_by()) {
    throw Error(ExitCode::output, fmt::format("the output directory {} is in use by {}", path_,
                                              lock.held_by()->empty() ? "another job" : *lock.held_by()));
  }
  if (!lock.supported()) {
    warn(fmt::format("{}: no locks on this file system; nothing keeps a second job away", path_));
  }
}

std::optional<std::string> RunFolder::read(const std::string& name) const {
  if (!has_file(file(name), ExitCode::output)) return std::nullopt;
  return read_text(file(name), max_text, ExitCode::output);
}

/// Whether an earlier run left anything but its lock and empty directories.
bool RunFolder::holds_a_run() const {
  return std::ranges::any_of(list_directory(path_, ExitCode::output), [&](const std::string& name) {
    if (name == lock_name) return false;
    return kind_of_entry(file(name), ExitCode::output) != FileKind::directory ||
           !list_directory(file(name), ExitCode::output).empty();
  });
}

void RunFolder::require_free_stop_file() {
  comm_.together([&] {
    if (!comm_.root()) return;
    const FileKind found = kind_of_entry(stop_file_, ExitCode::output);
    const bool empty_file = found == FileKind::regular && file_size(stop_file_, ExitCode::output) == 0;
    if (found == FileKind::absent || empty_file) return;
    throw Error(ExitCode::output,
                fmt::format("{}: is the stop file, but not an empty one that a run might remove: move it, or name "
                            "another as stop.file",
                            stop_file_));
  });
}

std::optional<std::string> RunFolder::begin(bool anew) {
  std::optional<std::string> old;
  comm_.together([&] {
    if (!comm_.root()) return;
    if (anew && holds_a_run()) {
      old = set_aside(path_, ExitCode::output);
      make_directories(path_, ExitCode::output);
      lock();  // beside that of the old directory, for which another job may still be waiting
    }
    made_ = false;
    // A stop file of the last run would end this one at once.
    remove_file(stop_file_, ExitCode::output);
  });
  return old;
}

bool RunFolder::keep() {
  try {
    if (locks_.back().in_place()) return false;
    make_directories(path_, ExitCode::output);
    make_directories(heartbeats(), ExitCode::output);
  } catch (const Error& error) {
    if (!warned_) warn(error.what());
    warned_ = true;
    return false;
  }
  lock();
  locks_.erase(locks_.begin(), locks_.end() - 1);
  warn(fmt::format("{}: was removed while the run goes on; made again", path_));
  return true;
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  replace_text(file(name), ExitCode::output, text);
}

}  // namespace nanorun
