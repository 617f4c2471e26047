#include "src/run/run_directory.hpp"

#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <span>
#include <thread>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"
#include "src/base/output_file.hpp"
#include "src/run/lock_text.hpp"

namespace nanorun {

namespace {

/// Seconds since a file was last written, by the clock of its file system: that of a new file beside it, whose name is
/// short whatever the file's is.
double age_of(const std::string& path) {
  const FileState written = state_of(path, ExitCode::output);
  const std::string mark = fmt::format("{}/lock.{:08x}", directory_of(path), std::random_device()());
  create_file(mark, ExitCode::output);
  const FileState now = state_of(mark, ExitCode::output);
  remove_file(mark, ExitCode::output);
  return static_cast<double>(now.seconds - written.seconds) +
         1e-9 * static_cast<double>(now.nanoseconds - written.nanoseconds);
}

bool is_lock(const std::string& path) { return may_be_lock(text_of_run(path).value_or("")); }

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

RunDirectory::RunDirectory(Comm& comm, const Config& config) : comm_(comm), paths_(config) {
  comm_.together([&] {
    if (!comm_.root()) return;
    paths_.require_usable();
    made_ = !exists(path(), ExitCode::output);
    make_directories(path(), ExitCode::output);
    made_lock_ = !exists(paths_.lock(), ExitCode::output);
    no_checkpoints_ = kind_of_entry(checkpoints(), ExitCode::output) == FileKind::absent;
    lock();
  });
  if (comm_.size() > 1) require_in_sight();
}

RunDirectory::~RunDirectory() { remove_unused(); }

void RunDirectory::remove_unused() {
  quietly([&] {
    if (locks_.empty() || !locks_.back().in_place()) return;
    if (no_checkpoints_) remove_empty_directory(checkpoints(), ExitCode::output);
    if (!made_lock_) return;
    remove_file(paths_.lock(), ExitCode::output);
    if (made_) remove_empty_directory(path(), ExitCode::output);
  });
}

void RunDirectory::lock() {
  FileLock lock(paths_.lock(), own_name(), ExitCode::output);
  if (lock.held_by()) throw paths_.in_use(*lock.held_by(), lock.held_elsewhere());
  if (!lock.supported()) {
    warn(fmt::format("{}: no locks on this file system; nothing keeps a second job away", path()));
  }
  locks_.push_back(std::move(lock));
  opened_ = open_directory(path(), ExitCode::output);
}

/// Every rank looks for a file that rank 0 makes. Its name is new, so that no directory of another node, and nothing
/// that a network file system remembers, stands in its way.
void RunDirectory::require_in_sight() {
  std::string mark;
  comm_.together([&] {
    if (!comm_.root()) return;
    mark = fmt::format("{}.{:08x}", paths_.lock(), std::random_device()());
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
                          own, path()));
}

void RunDirectory::require_free(const Config& config, const Continuation& continuation, long first_step) {
  comm_.together([&] {
    if (!comm_.root()) return;
    if (!continuation.complete) paths_.require_free_stop_file();
    paths_.require_free_files(config, comm_.size(), continuation, first_step);
  });
}

std::vector<std::string> RunDirectory::begin(const Config& config, Start start, double seconds) {
  std::vector<std::string> lines;
  comm_.together([&] {
    if (!comm_.root()) return;
    if (remove_earlier_stop_file(seconds)) lines.push_back("removed the stop file of an earlier stop: " + stop_file());
    // Another job may begin and end a run there before this one has the lock of the new directory.
    while (start == Start::anew && paths_.holds_a_run()) lines.push_back(keep_earlier_run());
    keep_foreign_files(config);
    made_ = made_lock_ = no_checkpoints_ = false;
  });
  return lines;
}

/// Gives the directory another name and makes a new one. Returns a line for the log.
std::string RunDirectory::keep_earlier_run() {
  const bool asked_to_stop = exists(stop_file(), ExitCode::output);
  const std::string kept = set_aside(path(), ExitCode::output);
  if (kind_of_entry(kept + "/checkpoints", ExitCode::output) == FileKind::symlink)
    warn(fmt::format("{}: the link went to {} with the earlier run; this run writes into a plain directory",
                     checkpoints(), kept));
  make_directories(path(), ExitCode::output);
  lock();  // beside that of the old directory, for which another job may still be waiting
  // The stop file may have gone with the old directory.
  if (asked_to_stop && !exists(stop_file(), ExitCode::output)) {
    make_directories(directory_of(stop_file()), ExitCode::output);
    create_file(stop_file(), ExitCode::output);
  }
  return "an earlier run of this name is kept as " + kept;
}

/// A stop file of the last run would end this one at once. Whoever makes one while this run starts wants it to stop.
bool RunDirectory::remove_earlier_stop_file(double seconds) const {
  if (!exists(stop_file(), ExitCode::output) || age_of(stop_file()) <= seconds) return false;
  remove_file(stop_file(), ExitCode::output);
  return true;
}

/// Also removes what writes of an earlier start that were cut short have left. A file that grows is looked at when it
/// is opened.
void RunDirectory::keep_foreign_files(const Config& config) const {
  for (const RunPaths::Place& place : paths_.places(config, {.here = true})) {
    if (place.partial || !place.file.grows) clear_own_place(place.path, ExitCode::output, place.is_own);
  }
  for (const RunFile& one : run_files()) {
    const std::string partial = partial_of(file(one.name));
    if (kind_of_entry(partial, ExitCode::output) == FileKind::regular) remove_file(partial, ExitCode::output);
  }
}

bool RunDirectory::keep() {
  bool anew = true;
  try {
    const bool taken = is_taken();
    if (!taken && locks_.back().in_place()) return false;
    const bool same = !taken && names_file(path(), opened_, ExitCode::output);
    if (same) clear_own_place(paths_.lock(), ExitCode::output, is_lock);
    // Whoever runs there, or did, has left a lock file, perhaps only just now.
    if (taken || has_file(paths_.lock(), ExitCode::output) || !lock_again()) {
      move_beside();
    } else {
      warn(fmt::format("{}: was removed while the run goes on; made again", same ? paths_.lock() : path()));
      anew = !same;
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
  return kind_of(path(), ExitCode::output) != FileKind::directory &&
         kind_of_entry(path(), ExitCode::output) != FileKind::absent;
}

/// Makes and locks the directory. Returns whether no other job has locked it before.
bool RunDirectory::lock_again() {
  make_directories(path(), ExitCode::output);
  lock();
  return !locks_.back().was_used();
}

/// Nothing of the other run is touched.
void RunDirectory::move_beside() {
  do {
    paths_.move_to(free_name(path(), ExitCode::output));
  } while (!lock_again());
  displaced_ = true;
}

void RunDirectory::write(const std::string& name, const std::string& text) const {
  clear_own_place(file(name), ExitCode::output, run_file(name).is_own);
  replace_text(file(name), ExitCode::output, text);
}

}  // namespace nanorun
