#include "src/run/lock_text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "src/base/files.hpp"
#include "src/base/launch.hpp"

namespace nanorun {

namespace {

constexpr std::string_view of_job = "job ", of_process = "process ", on_node = " on node ";
constexpr std::string_view on_host = " on host ";  ///< in lock files of earlier programs

/// Takes the number of a process and " on node NAME", or an earlier program's " on host NAME", off the front.
bool take_process(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  if (digits == 0 || (!text.starts_with(on_node) && !text.starts_with(on_host))) return false;
  text.remove_prefix(on_node.size());
  const std::size_t name = std::min(text.find_first_of("; \n"), text.size());
  text.remove_prefix(name);
  return name > 0;
}

}  // namespace

std::string own_name() {
  const std::string job = job_id();
  return fmt::format("{}{}{}{}{}", job.empty() ? "" : fmt::format("{}{}, ", of_job, job), of_process, ::getpid(),
                     on_node, host_name());
}

bool is_lock_text(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.starts_with(of_job)) {
    const std::size_t end = text.find(", ");
    if (end == text.npos) return false;
    text.remove_prefix(end + 2);
  }
  if (!text.starts_with(of_process)) return false;
  text.remove_prefix(of_process.size());
  return take_process(text) && (text.empty() || text.starts_with(checkpoints_of));
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
