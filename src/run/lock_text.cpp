#include "src/run/lock_text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "src/base/files.hpp"
#include "src/base/launch.hpp"

namespace nanorun {

namespace {

constexpr const char* on_node = " on node ";
constexpr const char* on_host = " on host ";  ///< in lock files of earlier programs

}  // namespace

std::string own_name() {
  const std::string job = job_id();
  return fmt::format("{}process {}{}{}", job.empty() ? "" : fmt::format("job {}, ", job), ::getpid(), on_node,
                     host_name());
}

bool is_lock_text(const std::string& text) {
  return text.find(on_node) != std::string::npos || text.find(on_host) != std::string::npos;
}

std::string owner_in_lock(const std::string& text) {
  const std::size_t at = text.find(checkpoints_of);
  return at == std::string::npos ? "" : text.substr(at + std::string(checkpoints_of).size());
}

bool holds_checkpoints(const std::string& directory, ExitCode code) {
  return std::ranges::any_of(list_directory(directory, code), [](const std::string& name) {
    return name.starts_with("checkpoint_") && name.ends_with(".h5");
  });
}

}  // namespace nanorun
