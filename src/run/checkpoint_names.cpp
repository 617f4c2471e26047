#include "src/run/checkpoint_names.hpp"

#include <charconv>
#include <string_view>

#include "src/base/output_file.hpp"

namespace nanorun {

std::string name_of_step(long step) { return fmt::format("checkpoint_{:08}.h5", step); }

std::optional<long> step_of(const std::string& name) {
  constexpr std::string_view prefix = "checkpoint_";
  if (!name.starts_with(prefix)) return std::nullopt;
  long step = 0;
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || name != name_of_step(step)) return std::nullopt;
  return step;
}

std::optional<long> step_of_unfinished(const std::string& name) {
  const std::string suffix = partial_of("");
  if (!name.ends_with(suffix)) return std::nullopt;
  return step_of(name.substr(0, name.size() - suffix.size()));
}

bool is_lock_of_mpi(const std::string& name) {
  const std::string suffix = partial_of("");
  const std::size_t end = std::min(name.find(suffix) + suffix.size(), name.size());
  std::string rest = name.substr(end);
  std::erase_if(rest, [](char c) { return '0' <= c && c <= '9'; });
  return step_of_unfinished(name.substr(0, end)) && (rest == "--.lock" || rest == ".locktest.");
}

Error checkpoint_error(const std::string& message) { return {ExitCode::checkpoint, message, Scope::all_ranks}; }

void warn(const Comm& comm, const std::string& message) {
  if (comm.root()) warn(message);
}

}  // namespace nanorun
