#include "src/run_folder.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "src/error.hpp"

namespace nanorun {

namespace fs = std::filesystem;

namespace {

constexpr const char* lock_name = "lock";

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

/// Whether an earlier run left anything but its lock.
bool holds_a_run(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder),
                             [](const fs::directory_entry& entry) { return entry.path().filename() != lock_name; });
}

/// Keeps what an earlier run wrote under the first free number.
void back_up(const fs::path& folder) {
  int number = 1;
  while (fs::exists(fmt::format("{}.{}", folder.string(), number))) ++number;
  fs::rename(folder, fmt::format("{}.{}", folder.string(), number));
}

/// Throws filesystem_error unless files can be made in the folder.
void require_writable(const std::string& folder) {
  fs::create_directories(folder);
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw fs::filesystem_error("cannot write", folder, std::error_code(errno, std::generic_category()));
}

}  // namespace

RunFolder::RunFolder(Comm& comm, const Config& config) : path_(config.run.outputs + "/" + config.run.name) {
  comm.together([&] {
    if (comm.root()) prepare(config);
  });
}

void RunFolder::prepare(const Config& config) {
  try {
    require_writable(path_);
    lock();
    if (config.checkpoint.restart == "none" && holds_a_run(path_)) {
      back_up(path_);
      require_writable(path_);
      lock();  // beside that of the old folder, for which another job may still be waiting
    }
    require_writable(checkpoints());
    // A stop file of the last run would end this one at once.
    fs::remove(stop_file(config.stop));
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::output, fmt::format("cannot prepare the output folder: {}: {}", error.path1().string(),
                                              error.code().message()));
  }
}

void RunFolder::lock() {
  const FileLock& lock = locks_.emplace_back(file(lock_name), own_name(), ExitCode::output);
  if (lock.held_by()) {
    throw Error(ExitCode::output, fmt::format("the output folder {} is in use by {}", path_,
                                              lock.held_by()->empty() ? "another job" : *lock.held_by()));
  }
  if (!lock.supported()) {
    fmt::print(stderr, "nanorun: warning: {}: no locks on this file system; nothing keeps a second job away\n", path_);
  }
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  replace_text(file(name), ExitCode::output, text);
}

}  // namespace nanorun
