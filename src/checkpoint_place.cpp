#include "src/checkpoint_place.hpp"

#include <fmt/format.h>

#include "src/files_own.hpp"
#include "src/run_directory.hpp"

namespace nanorun {

namespace {

constexpr ExitCode code = ExitCode::checkpoint;
constexpr const char* lock_name = "/lock";
constexpr const char* owned_by = "; checkpoints of ";  ///< in the lock file, before the path of the run's directory

/// What a lock file says; empty where there is none.
std::string lock_text(const std::string& directory) {
  constexpr std::uint64_t max_text = 1 << 16;
  const std::string path = directory + lock_name;
  return has_file(path, code) ? read_text(path, max_text, code) : "";
}

/// Whether a run has its directory there.
bool is_of_a_run(const std::string& directory) {
  std::string text;
  quietly([&] { text = lock_text(directory); });
  if (is_lock_text(text)) return text.find(owned_by) == std::string::npos;
  const auto has = [&](const char* name) { return kind_of_entry(directory + name, code) != FileKind::absent; };
  return has("/deck.toml") && has("/log.txt");
}

/// The run that has its checkpoints in the directory by the text of the lock there, if it still has; else empty.
std::string owner_of(const std::string& text, const std::string& directory) {
  const std::size_t at = text.find(owned_by);
  if (at == std::string::npos) return {};
  const std::string owner = text.substr(at + std::string(owned_by).size());
  return same_file(owner + "/checkpoints", directory, code) ? owner : std::string();
}

/// The run's directory has been given another name, run.1, .2, ..., and with it the link to the place: says so there.
void note_new_owner(const std::string& place, const std::string& run) {
  for (int number = 1;; ++number) {
    const std::string owner = fmt::format("{}.{}", run, number);
    if (kind_of_entry(owner, code) == FileKind::absent) return;
    if (same_file(owner + "/checkpoints", place, code))
      overwrite_start(place + lock_name, own_name() + owned_by + real_path(owner, code), code);
  }
}

Error taken(const std::string& directory, const std::string& place, const std::string& run) {
  return {code, fmt::format("{}: a link to {}, which is of another run, {}: make it a link to a directory of this run "
                            "alone, or remove it; checkpoint.restart=FILE continues from a checkpoint of another run",
                            directory, place, run)};
}

/// Throws where another run has to do with the place.
void require_free_of_runs(const std::string& directory, const std::string& place, const std::string& own_run) {
  for (std::string above = place; above != own_run; above = directory_of(above)) {
    if (is_of_a_run(above)) throw taken(directory, place, above);
    if (above == "/") break;
  }
  const std::string owner = owner_of(lock_text(place), place);
  if (!owner.empty() && owner != own_run && !same_file(owner, own_run, code)) throw taken(directory, place, owner);
}

}  // namespace

void CheckpointPlace::enter(const std::string& directory) {
  if (kind_of_entry(directory, code) != FileKind::symlink) {
    if (lock_) note_new_owner(locked_, directory_of(directory));
    lock_.reset();
    return;
  }
  if (kind_of(directory, code) != FileKind::directory)
    throw Error(code, directory + ": a link to no directory: make the directory, or remove the link");
  const std::string place = real_path(directory, code), own_run = real_path(directory_of(directory), code);
  if (lock_ && locked_ == place && lock_->in_place()) return;
  const std::string text = lock_text(place);
  if (!text.empty() && !is_lock_text(text))
    throw Error(code, place + lock_name + ": is not the lock file of a run; move it away");
  require_free_of_runs(directory, place, own_run);
  FileLock lock(place + lock_name, own_name() + owned_by + own_run, code);
  if (lock.held_by()) {
    const std::string holder = lock.held_by()->substr(0, lock.held_by()->find(owned_by));
    throw Error(code, fmt::format("{}: a link to {}, which is in use by {}", directory, place,
                                  holder.empty() ? "another job" : holder));
  }
  if (!lock.supported()) warn(place + ": no locks on this file system; nothing keeps a second job away");
  lock_ = std::move(lock);
  locked_ = place;
}

}  // namespace nanorun
