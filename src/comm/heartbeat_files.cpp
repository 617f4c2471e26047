#include "src/comm/heartbeat_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <sstream>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"

namespace nanorun {

namespace {

/// Beats, collectives, activity, step.
std::string line_of(const Heartbeat& h) {
  return fmt::format("{:>20} {:>20} {:>1} {:>20}\n", h.beats, h.collectives, static_cast<int>(h.activity), h.step);
}

const std::size_t line_bytes = line_of({}).size();
constexpr std::uint64_t max_file_bytes = 1 << 20;

std::string file_of(int node) { return std::to_string(node); }

/// Whether a node has written the text, or was to write it.
bool is_heartbeats(const std::string& text) {
  if (text.size() % line_bytes != 0 || text.find_first_not_of("0123456789 \n") != std::string::npos) return false;
  for (std::size_t end = line_bytes; end <= text.size(); end += line_bytes) {
    if (text.find('\n', end - line_bytes) != end - 1) return false;
  }
  return true;
}

[[noreturn]] void refuse(const std::string& directory, const std::string& name) {
  throw Error(ExitCode::output, fmt::format("{}/{}: is no heartbeat of a run: move it away", directory, name));
}

/// Whether nothing but heartbeats has the name.
bool is_free(const OwnDirectory& own, const std::string& name) {
  return !own.has(name) || is_heartbeats(own.read(name, max_file_bytes));
}

/// Whether the file of one of so many nodes has the name.
bool is_of_node(const std::string& name, int nodes) {
  int node = -1;
  const char* const end = name.data() + name.size();
  return std::from_chars(name.data(), end, node).ptr == end && node >= 0 && node < nodes && name == file_of(node);
}

}  // namespace

void HeartbeatFiles::require_free(int ranks) const {
  require_own_place(directory_, FileKind::directory, ExitCode::output);
  require_possible_directory(directory_, ExitCode::output);
  if (!exists(directory_, ExitCode::output)) return;
  const OwnDirectory own(directory_, ExitCode::output);
  for (const std::string& name : own.list()) {
    if (!is_of_node(name, ranks)) continue;
    if (!is_heartbeats(own.read(name, max_file_bytes))) refuse(directory_, name);
    require_movable(directory_ + "/" + name, ExitCode::output);
  }
}

void HeartbeatFiles::clear(int ranks) const {
  require_free(ranks);
  const OwnDirectory own = OwnDirectory::make(directory_, ExitCode::output);
  std::vector<std::string> left;
  for (const std::string& name : own.list()) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    bool removed = false;
    quietly([&] {
      if (!is_heartbeats(own.read(name, max_file_bytes))) return;
      own.remove(name);
      removed = true;
    });
    if (!removed) left.push_back(name);
  }
  if (left.empty()) return;
  warn(fmt::format("{}: no heartbeats of a run, or not to be removed, and left alone: {}", directory_,
                   excerpt(fmt::format("{}", fmt::join(left, ", ")))));
}

void HeartbeatFiles::write(int node, std::span<const Heartbeat> ranks) const {
  std::string text;
  for (const Heartbeat& rank : ranks) text += line_of(rank);
  const OwnDirectory own(directory_, ExitCode::output);
  if (!is_free(own, file_of(node))) refuse(directory_, file_of(node));
  own.overwrite_start(file_of(node), text);
}

std::vector<Heartbeat> HeartbeatFiles::read(int node, int ranks) const {
  std::vector<Heartbeat> heartbeats(ranks);
  quietly([&] {
    std::istringstream lines(OwnDirectory(directory_, ExitCode::output).read(file_of(node), line_bytes * ranks));
    for (Heartbeat& rank : heartbeats) {
      Heartbeat h;
      std::uint32_t activity = 0;
      if (!(lines >> h.beats >> h.collectives >> activity >> h.step)) return;
      h.activity = static_cast<Activity>(activity);
      rank = h;
    }
  });
  return heartbeats;
}

void HeartbeatFiles::remove(int node) const {
  quietly([&] {
    const OwnDirectory own(directory_, ExitCode::output);
    if (is_free(own, file_of(node))) own.remove(file_of(node));
    remove_empty_directory(directory_, ExitCode::output);
  });
}

}  // namespace nanorun
