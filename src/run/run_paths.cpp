#include "src/run/run_paths.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string_view>
#include <thread>

#include "src/base/error.hpp"
#include "src/base/file_lock.hpp"
#include "src/base/output_file.hpp"
#include "src/comm/heartbeat_files.hpp"
#include "src/run/checkpoint_link.hpp"
#include "src/run/checkpoint_names.hpp"
#include "src/run/deck_inputs.hpp"
#include "src/run/lock_text.hpp"
#include "src/run/run_files.hpp"
#include "src/storage/h5_shared_path.hpp"

namespace nanorun {

namespace {

constexpr const char* lock_name = "lock";
constexpr std::array<const char*, 2> folder_names = {"checkpoints", "heartbeats"};

/// What to do where the system refuses a look at what a run needs in its directory.
constexpr const char* remedy = "allow it (chmod, chattr), or change run.name or run.outputs";

/// Throws where the run could not append to the file, or not read what an earlier run has left of it.
void require_appendable(const std::string& path) {
  require_writable(path, ExitCode::output);
  const std::uint64_t bytes = file_size(path, ExitCode::output), limit = file_size_limit();
  if (bytes < limit) return;
  throw Error(ExitCode::output,
              fmt::format("{}: has {} bytes, as many as the file size limit (ulimit -f) allows: raise "
                          "the limit, or move the file away",
                          path, bytes));
}

/// Throws where the run could not write the file, in its place or by way of its partial file, or not read what an
/// earlier run has left of it.
void require_free_file(const std::string& path, const RunFile& file) {
  require_own_place(path, FileKind::regular, ExitCode::output);
  const bool there = kind_of_entry(path, ExitCode::output) == FileKind::regular;
  const bool foreign = !foreign_warning(path, ExitCode::output, file.is_own).empty();
  if (there && file.grows && !foreign) require_appendable(path);
  if (there && name_of(path) == "trace.h5") open_to_read(path, ExitCode::output);
  if (!file.grows || foreign) require_movable(path, ExitCode::output);
  const auto is_shared = [&] {
    return there && links_of(open_to_read(path, ExitCode::output), path, ExitCode::output) > 1;
  };
  if (file.grows && !is_shared()) return;
  require_own_place(partial_of(path), FileKind::regular, ExitCode::output);
  require_movable(partial_of(path), ExitCode::output);
}

/// Also of directories that are not there yet.
bool is_same_directory(const std::string& a, const std::string& b) {
  return same_file(a, b, ExitCode::output) ||
         canonical_path(a, ExitCode::output) == canonical_path(b, ExitCode::output);
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

/// Whether a state is still there after a moment.
bool stays(const std::function<bool()>& is_there) {
  for (int tries = 0; tries < 5; ++tries) {
    if (!is_there()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// Throws where the stop file of an earlier stop could not be removed.
void require_removable(const std::string& path) {
  const std::string obstacle = obstacle_to_renaming(path, ExitCode::output);
  if (obstacle.empty()) return;
  throw Error(ExitCode::output, fmt::format("{}: is the stop file of an earlier stop, which cannot be removed: {}: "
                                            "remove it, or name another as stop.file",
                                            path, obstacle));
}

/// Whether a run that continues so writes the file: a run that is complete writes its log alone.
bool is_written(const Config& config, const RunFile& file, const Continuation& continuation) {
  return needs(config, file) && (!continuation.complete || std::string_view(file.name) == "log.txt");
}

/// Throws where the path of a checkpoint in outputs/<name>.999 is too long: a run may move its directory to such a name
/// while it goes on.
void require_room_in_paths(const Config& config) {
  const std::string checkpoints = RunPaths(config).path() + ".999/checkpoints";
  try {
    // The longest name that the program gives.
    require_possible_path(checkpoints + "/checkpoint_2147483647.h5.partial", ExitCode::output);
    h5::require_sharable(fmt::format("{}/checkpoint_{:08}.h5.partial", checkpoints, config.train.steps),
                         ExitCode::checkpoint);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} (.999 is for a run whose directory is taken while it goes on): shorten "
                                          "run.name or run.outputs",
                                          error.what()));
  }
}

}  // namespace

std::vector<std::string> relative_keys(const Config& config) {
  std::vector<std::string> keys;
  const auto look = [&](const char* key, const std::vector<std::string>& paths) {
    if (std::ranges::any_of(paths, [](const std::string& path) { return !path.starts_with('/'); })) keys.push_back(key);
  };
  look("run.outputs", {config.run.outputs});
  for (const auto& [key, files] : deck_inputs(config)) {
    if (std::string_view(key) != "data.prefix_table") look(key, files);  // rank 0 alone reads it
  }
  return keys;
}

void require_possible_paths(const Config& config) {
  if (!relative_keys(config).empty()) working_directory(ExitCode::usage);
  require_room_in_paths(config);
  require_possible_path(config.stop.file, ExitCode::output);
  require_possible_path(config.checkpoint.restart, ExitCode::checkpoint);
  require_possible_path(config.checkpoint.weights, ExitCode::checkpoint);
}

RunPaths::RunPaths(const Config& config)
    : path_(config.run.outputs + "/" + config.run.name),
      stop_file_(config.stop.file.empty() ? file("stop") : config.stop.file) {}

std::string RunPaths::lock() const { return file(lock_name); }

void RunPaths::require_usable() const {
  require_stop_file_elsewhere();
  require_no_checkpoints_of_others();
  const std::optional<std::string> holder = with_remedy(remedy, [&] {
    require_possible_directory(path_, ExitCode::output);
    if (exists(path_, ExitCode::output)) open_directory(path_, ExitCode::output);
    return text_of_run(lock());
  });
  if (!holder) return;
  if (!may_be_lock(*holder))
    throw Error(ExitCode::output, lock() + ": is not the lock file of a run; move it, or change run.name");
  with_remedy(remedy, [&] { require_writable(lock(), ExitCode::output); });
}

/// Throws where the stop file has the path of the run's directory, or of one above. These may not be there yet.
void RunPaths::require_stop_file_elsewhere() const {
  const std::string own = canonical_path(path_, ExitCode::output);
  const std::string stop = canonical_path(stop_file_, ExitCode::output);
  if (own != stop && !own.starts_with(stop + "/")) return;
  throw Error(ExitCode::usage, fmt::format("stop.file = {}: the run's directory {} {}; name a file, as outputs/stop",
                                           stop_file_, path_, own == stop ? "has this path" : "lies in it"));
}

/// Throws where another run has its checkpoints here or in a directory above.
void RunPaths::require_no_checkpoints_of_others() const {
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

void RunPaths::require_unlocked() const {
  const std::optional<std::string> holder = text_of_run(lock());
  const auto is_held = [&] { return lock_state(lock(), LockKind::shared, ExitCode::output) == LockState::held; };
  if (!holder || !stays(is_held)) return;
  const std::uint64_t links = links_of(open_to_read(lock(), ExitCode::output), lock(), ExitCode::output);
  throw in_use(*holder, links > 1);
}

Error RunPaths::in_use(const std::string& holder, bool elsewhere) const {
  return {ExitCode::output, fmt::format("the output directory {}{} is in use by {}", path_,
                                        elsewhere ? ", or the run of which it is a copy by hard links," : "",
                                        is_blank_lock(holder) ? "another job" : holder)};
}

void RunPaths::require_free_stop_file() const {
  require_possible_file(stop_file_);
  if (is_own_file(stop_file_)) {
    throw Error(
        ExitCode::usage,
        fmt::format("stop.file = {}: is one of the run's own files; name another, as outputs/stop", stop_file_));
  }
  const FileKind found = kind_of_entry(stop_file_, ExitCode::output);
  const bool empty_file = found == FileKind::regular && file_size(stop_file_, ExitCode::output) == 0;
  if (found == FileKind::absent) return;
  if (empty_file) return require_removable(stop_file_);
  throw Error(ExitCode::output,
              fmt::format("{}: is the stop file, but not an empty one that a run might remove: move it, or name "
                          "another as stop.file",
                          stop_file_));
}

/// Whether a path has the name of what a run writes in its directory, or lies anywhere in one of its folders there.
bool RunPaths::is_own_file(const std::string& path) const {
  const std::string folder = directory_of(path), name = name_of(path);
  if (is_same_directory(folder, path_)) {
    const auto is_this = [&](const char* own) { return name == own || name == partial_of(own); };
    return name.starts_with(lock_name) || std::ranges::any_of(run_files(), is_this, &RunFile::name) ||
           std::ranges::any_of(folder_names, is_this);
  }
  for (std::string above = canonical_path(folder, ExitCode::output); above != directory_of(above);
       above = directory_of(above)) {
    const auto is_this = [&](const char* own) {
      return is_same_directory(above, file(own)) ||
             (name_of(above) == own && is_same_directory(directory_of(above), path_));
    };
    if (std::ranges::any_of(folder_names, is_this)) return true;
  }
  return false;
}

/// Throws where the directory could not be set aside with the earlier run.
void RunPaths::require_movable() const {
  const std::string obstacle = obstacle_to_renaming(path_, ExitCode::output);
  if (obstacle.empty()) return;
  throw Error(ExitCode::output, fmt::format("{}: cannot be renamed, so that the earlier run in it could not be kept: "
                                            "{}: choose another run.name, or move what is in it away",
                                            path_, obstacle));
}

void RunPaths::require_free_files(const Config& config, int ranks, const Continuation& continuation,
                                  long first_step) const {
  require_inputs_stay(config, continuation, first_step);
  if (is_set_aside(continuation)) return require_movable();
  for (const RunFile& one : run_files()) {
    if (is_written(config, one, continuation)) with_remedy(remedy, [&] { require_free_file(file(one.name), one); });
  }
  if (!continuation.complete) HeartbeatFiles(heartbeats()).require_free(ranks);
}

/// Throws where the deck names a file that would no longer be there.
void RunPaths::require_inputs_stay(const Config& config, const Continuation& continuation, long first_step) const {
  const std::string own = canonical_path(path_, ExitCode::output);
  const bool is_moved = is_set_aside(continuation);
  const auto is_written_as = [&](const std::string& name) {
    return std::ranges::any_of(run_files(), [&](const RunFile& one) {
      return name == partial_of(one.name) || (name == one.name && is_written(config, one, continuation));
    });
  };
  const auto fate_of_checkpoint = [&](const std::string& path) -> std::string {
    const std::string name = name_of(path);
    const bool is_unfinished = step_of_unfinished(name) || is_lock_of_mpi(name);
    const bool is_newer = !is_moved && step_of(name).value_or(0) > first_step;
    if (continuation.complete || (!is_unfinished && !is_newer)) return "";
    if (!same_file(directory_of(path), checkpoints(), ExitCode::output)) return "";
    if (is_unfinished)
      return fmt::format("the run removes or renames unfinished checkpoints, as {}: rename the file", path);
    return fmt::format("the run goes on from step {} and renames {}: move the file elsewhere", first_step, path);
  };
  nanorun::require_inputs_stay(config, [&](const std::string& path) -> std::string {
    if (is_moved && path.starts_with(own + "/"))
      return fmt::format(
          "this start would rename {} with all that is in it: move the file out of there, or change run.name", path_);
    if (!is_moved && directory_of(path) == own && is_written_as(name_of(path)))
      return "the run writes a file of this name: move the file elsewhere, or change run.name";
    return fate_of_checkpoint(path);
  });
}

bool RunPaths::is_set_aside(const Continuation& continuation) const {
  return !continuation.complete && !continuation.here && holds_a_run();
}

std::vector<std::string> RunPaths::warnings(const Config& config, const Continuation& continuation,
                                            long first_step) const {
  std::vector<std::string> lines;
  const auto add = [&](std::string line) {
    if (!line.empty()) lines.push_back(std::move(line));
  };
  for (const Place& place : places(config, continuation)) {
    const std::string foreign = foreign_warning(place.path, ExitCode::output, place.is_own);
    add(foreign);
    if (foreign.empty() && !place.partial && place.file.warning) add(place.file.warning(place.path, first_step));
  }
  return lines;
}

std::vector<RunPaths::Place> RunPaths::places(const Config& config, const Continuation& continuation) const {
  std::vector<Place> places;
  for (const RunFile& one : run_files()) {
    const std::string path = file(one.name), partial = partial_of(path);
    if (is_written(config, one, continuation)) places.push_back({path, one.is_own, one});
    if (!continuation.complete && kind_of_entry(partial, ExitCode::output) == FileKind::regular)
      places.push_back({partial, [one](const std::string& rest) { return is_own_partial(one, rest); }, one, true});
  }
  return places;
}

bool RunPaths::holds_a_run() const {
  return std::ranges::any_of(list_directory(path_, ExitCode::output), [&](const std::string& name) {
    if (name.starts_with(lock_name) || file(name) == stop_file_) return false;
    return kind_of_entry(file(name), ExitCode::output) != FileKind::directory ||
           !list_directory(file(name), ExitCode::output).empty();
  });
}

}  // namespace nanorun
