#include "src/run/run_directory.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"
#include "src/base/output_file.hpp"
#include "src/measure/trace_datasets.hpp"
#include "src/run/checkpoint_link.hpp"
#include "src/run/lock_text.hpp"
#include "src/storage/h5_partial.hpp"

namespace nanorun {

namespace {

constexpr const char* lock_name = "lock";
/// What a run writes in its directory beside the lock.
constexpr std::array<const char*, 6> file_names = {"deck.toml",    "log.txt",  "metrics.jsonl",
                                                   "summary.json", "trace.h5", "trace.json"};
constexpr std::array<const char*, 2> folder_names = {"checkpoints", "heartbeats"};
constexpr std::uint64_t max_text = 1u << 30;  ///< bytes of a file that text_of_run() takes

/// Keys of the deck with relative paths at which all ranks look.
std::vector<std::string> relative_keys(const Config& config) {
  std::vector<std::string> keys;
  const auto look = [&](const char* key, const std::vector<std::string>& paths) {
    if (std::ranges::any_of(paths, [](const std::string& path) { return !path.starts_with('/'); })) keys.push_back(key);
  };
  look("run.outputs", {config.run.outputs});
  look("data.train", config.data.train);
  if (config.validation.tokens > 0) look("data.validation", config.data.validation);
  const std::string& restart = config.checkpoint.restart;
  if (restart != "auto" && restart != "none") look("checkpoint.restart", {restart});
  if (!config.checkpoint.weights.empty()) look("checkpoint.weights", {config.checkpoint.weights});
  return keys;
}

/// Seconds since a file was last written, by the clock of its file system, which a new file beside it tells.
double age_of(const std::string& path) {
  const FileState written = state_of(path, ExitCode::output);
  const std::string mark = fmt::format("{}.{:08x}", path, std::random_device()());
  create_file(mark, ExitCode::output);
  const FileState now = state_of(mark, ExitCode::output);
  remove_file(mark, ExitCode::output);
  return static_cast<double>(now.seconds - written.seconds) +
         1e-9 * static_cast<double>(now.nanoseconds - written.nanoseconds);
}

/// Whether the file is there. A network file system may show it to other nodes a little later.
bool appears(const std::string& path) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!exists(path, ExitCode::output)) {
    if (std::chrono::steady_clock::now() > patience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace

std::optional<std::string> text_of_run(const std::string& path) {
  if (!has_file(path, ExitCode::output)) return std::nullopt;
  return read_text(path, max_text, ExitCode::output);
}

void require_possible_paths(const Config& config) {
  if (!relative_keys(config).empty()) working_directory(ExitCode::usage);
  // The longest name that the program gives, to a file in checkpoints/.
  const std::string directory = config.run.outputs + "/" + config.run.name;
  require_possible_path(directory + "/checkpoints/checkpoint_2147483647.h5.partial", ExitCode::output);
  require_possible_path(config.stop.file, ExitCode::output);
  require_possible_path(config.checkpoint.restart, ExitCode::checkpoint);
  require_possible_path(config.checkpoint.weights, ExitCode::checkpoint);
}

void require_same_directory(Comm& comm, const Config& config) {
  const std::vector<std::string> keys = relative_keys(config);
  if (keys.empty()) return;
  std::string path;
  FileState state;
  comm.together([&] {
    path = working_directory(ExitCode::usage);
    state = state_of(".", ExitCode::usage);
  });
  const std::string node = host_name(), first_path = comm.broadcast(path), first_node = comm.broadcast(node);
  FileState first = state;
  comm.broadcast(std::as_writable_bytes(std::span(&first, 1)));
  comm.together([&] {
    // Nodes may mount a file system in several places, and number it as they like.
    const bool same = state.inode == first.inode && (state.device == first.device || node != first_node);
    if (path == first_path || same) return;
    throw Error(
        ExitCode::usage,
        fmt::format("rank {} works in {} on node {}, rank 0 in {} on node {}, so that relative paths of the deck "
                    "({}) name different files: start all ranks in one directory, or write full paths",
                    comm.rank(), path, node, first_path, first_node, fmt::join(keys, ", ")));
  });
}

RunDirectory::RunDirectory(Comm& comm, const Config& config)
    : comm_(comm),
      path_(config.run.outputs + "/" + config.run.name),
      stop_file_(config.stop.file.empty() ? file("stop") : config.stop.file) {
  comm_.together([&] {
    if (!comm_.root()) return;
    require_no_checkpoints_of_others();
    made_ = !exists(path_, ExitCode::output);
    make_directories(path_, ExitCode::output);
    const std::optional<std::string> holder = read(lock_name);
    if (holder && !holder->empty() && !is_lock_text(*holder))
      throw Error(ExitCode::output, file(lock_name) + ": is not the lock file of a run; move it, or change run.name");
    foreign_ = !holder && kind_of_entry(checkpoints(), ExitCode::output) == FileKind::absent;
    lock();
    made_lock_ = !holder;
  });
  if (comm_.size() > 1) require_in_sight();
}

/// Throws where another run has its checkpoints here or in a directory above.
void RunDirectory::require_no_checkpoints_of_others() const {
  const std::string own = canonical_path(path_, ExitCode::output);
  for (std::string above = own;; above = directory_of(above)) {
    const std::string owner = run_with_checkpoints_in(above);
    if (!owner.empty())
      throw Error(ExitCode::output,
                  fmt::format("{}: {} the checkpoints of another run, {}: change run.name or run.outputs", path_,
                              above == own ? "has" : "lies among", owner));
    if (above == directory_of(above)) return;
  }
}

RunDirectory::~RunDirectory() { remove_unused(); }

void RunDirectory::remove_unused() {
  if (!made_lock_) return;
  quietly([&] {
    if (!locks_.back().in_place()) return;
    remove_file(file(lock_name), ExitCode::output);
    if (made_) remove_empty_directory(path_, ExitCode::output);
  });
}

void RunDirectory::lock() {
  FileLock lock(file(lock_name), own_name(), ExitCode::output);
  if (lock.held_by()) {
    throw Error(ExitCode::output,
                fmt::format("the output directory {}{} is in use by {}", path_,
                            lock.held_elsewhere() ? ", or the run of which it is a copy by hard links," : "",
                            lock.held_by()->empty() ? "another job" : *lock.held_by()));
  }
  if (!lock.supported()) {
    warn(fmt::format("{}: no locks on this file system; nothing keeps a second job away", path_));
  }
  locks_.push_back(std::move(lock));
  opened_ = open_directory(path_, ExitCode::output);
}

/// Every rank looks for a file that rank 0 makes. Its name is new, so that no directory of another node, and nothing
/// that a network file system remembers, stands in its way.
void RunDirectory::require_in_sight() {
  std::string mark;
  comm_.together([&] {
    if (!comm_.root()) return;
    mark = fmt::format("{}.{:08x}", file(lock_name), std::random_device()());
    create_file(mark, ExitCode::output);
  });
  mark = comm_.broadcast(mark);
  try {
    comm_.together([&] { require_appearance(mark); });
  } catch (const Error&) {
    if (comm_.root()) quietly([&] { remove_file(mark, ExitCode::output); });
    remove_unused();
    throw;
  }
  comm_.together([&] {
    if (comm_.root()) remove_file(mark, ExitCode::output);
  });
}

/// Throws, naming this rank, where the file is not there.
void RunDirectory::require_appearance(const std::string& mark) const {
  const std::string own = comm_.name();
  bool seen = false;
  try {
    seen = appears(mark);
  } catch (const Error& error) {
    throw Error(ExitCode::output, own + ": " + error.what());
  }
  if (seen) return;
  throw Error(ExitCode::output,
              fmt::format("{} does not see {}, which rank 0 has made: it must be on a file system that all nodes share",
                          own, path_));
}

/// Whether an earlier run left anything but its lock, marks beside it, a stop file and empty directories.
bool RunDirectory::holds_a_run() const {
  return std::ranges::any_of(list_directory(path_, ExitCode::output), [&](const std::string& name) {
    if (name.starts_with(lock_name) || file(name) == stop_file_) return false;
    return kind_of_entry(file(name), ExitCode::output) != FileKind::directory ||
           !list_directory(file(name), ExitCode::output).empty();
  });
}

/// Whether a path has the name of what a run writes in its directory, or lies anywhere in one of its folders there.
bool RunDirectory::is_own_file(const std::string& path) const {
  const std::string folder = directory_of(path), name = name_of(path);
  if (same_file(folder, path_, ExitCode::output)) {
    const auto is_this = [&](const char* own) { return name == own || name == partial_of(own); };
    return name.starts_with(lock_name) || std::ranges::any_of(file_names, is_this) ||
           std::ranges::any_of(folder_names, is_this);
  }
  for (std::string above = canonical_path(folder, ExitCode::output); above != directory_of(above);
       above = directory_of(above)) {
    const auto is_this = [&](const char* own) {
      return same_file(above, file(own), ExitCode::output) ||
             (name_of(above) == own && same_file(directory_of(above), path_, ExitCode::output));
    };
    if (std::ranges::any_of(folder_names, is_this)) return true;
  }
  return false;
}

/// Throws Error(usage) where no file of this name can ever be made.
void require_possible_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::usage, fmt::format("stop.file = {}: {}", path, why));
  };
  if (path.ends_with('/')) refuse("ends in '/': name a file");
  std::string above = directory_of(path);
  FileKind found = FileKind::absent;
  const auto look = [&] { found = kind_of(above, ExitCode::output); };
  for (quietly(look); found == FileKind::absent && directory_of(above) != above; quietly(look))
    above = directory_of(above);
  if (found != FileKind::absent && found != FileKind::directory)
    refuse(above + " is no directory, so that the file can never be made: name another");
}

void RunDirectory::require_free_stop_file() {
  comm_.together([&] {
    if (!comm_.root()) return;
    require_possible_file(stop_file_);
    if (is_own_file(stop_file_)) {
      throw Error(
          ExitCode::usage,
          fmt::format("stop.file = {}: is one of the run's own files; name another, as outputs/stop", stop_file_));
    }
    const FileKind found = kind_of_entry(stop_file_, ExitCode::output);
    const bool empty_file = found == FileKind::regular && file_size(stop_file_, ExitCode::output) == 0;
    if (found == FileKind::absent || empty_file) return;
    throw Error(ExitCode::output,
                fmt::format("{}: is the stop file, but not an empty one that a run might remove: move it, or name "
                            "another as stop.file",
                            stop_file_));
  });
}

std::vector<std::string> RunDirectory::begin(Start start, double seconds) {
  std::vector<std::string> lines;
  comm_.together([&] {
    if (!comm_.root()) return;
    if (remove_earlier_stop_file(seconds)) lines.push_back("removed the stop file of an earlier stop: " + stop_file_);
    if (start == Start::anew && holds_a_run()) {
      const bool asked_to_stop = exists(stop_file_, ExitCode::output);
      const std::string kept = set_aside(path_, ExitCode::output);
      lines.push_back("an earlier run of this name is kept as " + kept);
      if (kind_of_entry(kept + "/checkpoints", ExitCode::output) == FileKind::symlink)
        warn(fmt::format("{}: the link went to {} with the earlier run; this run writes into a plain directory",
                         checkpoints(), kept));
      make_directories(path_, ExitCode::output);
      lock();  // keeps the old directory's lock too, for which another job may still be waiting
      // The stop file may have gone with the old directory.
      if (asked_to_stop && !exists(stop_file_, ExitCode::output)) {
        make_directories(directory_of(stop_file_), ExitCode::output);
        create_file(stop_file_, ExitCode::output);
      }
    }
    if (foreign_) keep_foreign_files();
    keep_foreign_partials();
    made_ = made_lock_ = false;
  });
  return lines;
}

/// A stop file of the last run would end this one at once. Whoever makes one while this run starts wants it to stop.
bool RunDirectory::remove_earlier_stop_file(double seconds) const {
  if (!exists(stop_file_, ExitCode::output) || age_of(stop_file_) <= seconds) return false;
  remove_file(stop_file_, ExitCode::output);
  return true;
}

/// No run has been here: what has the name of a run's file is somebody's own.
void RunDirectory::keep_foreign_files() const {
  for (const char* name : file_names) {
    for (const std::string& path : {file(name), partial_of(file(name))}) {
      if (kind_of_entry(path, ExitCode::output) == FileKind::absent) continue;
      warn(fmt::format("{}: is of no run; kept as {}", path, set_aside(path, ExitCode::output)));
    }
  }
}

/// What writes of an earlier start that were cut short have left is told from a file of a user's only where it is HDF5.
void RunDirectory::keep_foreign_partials() const {
  for (const char* name : file_names) {
    const std::string path = partial_of(file(name));
    const bool is_text = std::string_view(name) != "trace.h5";
    if (kind_of_entry(path, ExitCode::output) != FileKind::regular) continue;
    if (is_text ? file_size(path, ExitCode::output) == 0
                : !h5::is_foreign_partial(path, trace_format, ExitCode::output))
      continue;
    warn(fmt::format("{}: somebody's own, or the rest of a write that was cut short; kept as {}", path,
                     set_aside(path, ExitCode::output)));
  }
}

bool RunDirectory::keep() {
  bool anew = true;
  try {
    const bool taken = is_taken();
    if (!taken && locks_.back().in_place()) return false;
    // Whoever runs there, or did, has left a lock file.
    if (taken || has_file(file(lock_name), ExitCode::output)) {
      move_beside();
    } else if (names_file(path_, opened_, ExitCode::output)) {
      lock();
      warn(fmt::format("{}: was removed while the run goes on; made again", file(lock_name)));
      anew = false;
    } else {
      make_again();
    }
    OwnDirectory::make(heartbeats(), ExitCode::output);
  } catch (const Error& error) {
    if (!warned_) warn(error.what());
    warned_ = true;
    return false;
  }
  locks_.erase(locks_.begin(), locks_.end() - 1);
  return anew;
}

/// Whether the path names something that is no directory.
bool RunDirectory::is_taken() const {
  return kind_of(path_, ExitCode::output) != FileKind::directory &&
         kind_of_entry(path_, ExitCode::output) != FileKind::absent;
}

void RunDirectory::make_again() {
  make_directories(path_, ExitCode::output);
  lock();
  warn(fmt::format("{}: was removed while the run goes on; made again", path_));
}

/// Nothing of the other run is touched.
void RunDirectory::move_beside() {
  path_ = free_name(path_, ExitCode::output);
  make_directories(path_, ExitCode::output);
  lock();
  displaced_ = true;
}

void RunDirectory::write(const std::string& name, const std::string& text) const {
  replace_text(file(name), ExitCode::output, text);
}

}  // namespace nanorun
