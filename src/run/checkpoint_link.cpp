#include "src/run/checkpoint_link.hpp"

#include <fmt/format.h>

#include "src/base/files.hpp"
#include "src/base/files_own.hpp"
#include "src/run/lock_text.hpp"

namespace nanorun {

namespace {

constexpr ExitCode code = ExitCode::checkpoint;
constexpr const char* lock_name = "/lock";

/// What a lock file says; empty where there is none.
std::string lock_text(const std::string& directory) {
  constexpr std::uint64_t max_text = 1 << 16;
  const std::string path = directory + lock_name;
  return has_file(path, code) ? read_text(path, max_text, code) : "";
}

/// Replaces what a lock file says, whose lock this process holds.
void write_lock_text(const std::string& path, const std::string& text) {
  overwrite_start(path, text, code);
  truncate_file(path, text.size(), code);
}

/// Whether a run has its directory there.
bool is_of_a_run(const std::string& directory) {
  std::string text;
  quietly([&] { text = lock_text(directory); });
  if (is_lock_text(text)) return owner_in_lock(text).empty();
  const auto has = [&](const char* name) { return kind_of_entry(directory + name, code) != FileKind::absent; };
  return has("/deck.toml") && has("/log.txt");
}

/// The run's directory was renamed to run.1, .2, ..., and with it the link to `target`: notes the new name there.
void note_new_owner(const std::string& target, const std::string& run) {
  for (int number = 1;; ++number) {
    const std::string owner = fmt::format("{}.{}", run, number);
    if (kind_of_entry(owner, code) == FileKind::absent) return;
    if (same_file(owner + "/checkpoints", target, code))
      write_lock_text(target + lock_name, own_name() + checkpoints_of + canonical_path(owner, code));
  }
}

Error taken(const std::string& directory, const std::string& target, const std::string& run) {
  return {code, fmt::format("{}: a link to {}, which is of another run, {}: make it a link to a directory of this run "
                            "alone, or remove it; checkpoint.restart=FILE continues from a checkpoint of another run",
                            directory, target, run)};
}

/// `holder`: what the lock file says.
Error in_use(const std::string& directory, const std::string& target, const std::string& holder) {
  const std::string name = holder.substr(0, holder.find(checkpoints_of));
  return {code, fmt::format("{}: a link to {}, which is in use by {}", directory, target,
                            is_blank_lock(name) ? "another job" : name)};
}

/// Throws where the target belongs to another run, or did.
void require_free_of_runs(const std::string& directory, const std::string& target, const std::string& own_run) {
  for (std::string above = target; above != own_run; above = directory_of(above)) {
    if (is_of_a_run(above)) throw taken(directory, target, above);
    if (above == "/") break;
  }
  const std::string text = lock_text(target), owner = owner_in_lock(text);
  if (owner.empty() || owner == own_run || same_file(owner, own_run, code)) return;
  if (same_file(owner + "/checkpoints", target, code)) throw taken(directory, target, owner);
  if (!holds_checkpoints(target, code)) return;
  // The other run may have another name now, or be mounted elsewhere.
  const std::string lock = target + lock_name;
  if (lock_state(lock, LockKind::exclusive, code) == LockState::held) throw in_use(directory, target, text);
  throw Error(code, fmt::format("{}: a link to {}, which holds checkpoints of {} by {}, but that run is not there: "
                                "if it is this run under a new name, remove {}; else make the link one to a "
                                "directory of this run alone",
                                directory, target, owner, lock, lock));
}

/// The canonical path of the directory to which the link leads. Throws where it leads to none.
std::string target_of(const std::string& directory) {
  if (kind_of(directory, code) != FileKind::directory)
    throw Error(code, directory + ": a link to no directory: make the directory, or remove the link");
  return canonical_path(directory, code);
}

/// Throws where the target is not free for this run.
void require_own(const std::string& directory, const std::string& target, const std::string& own_run) {
  if ((own_run + "/").starts_with(target == "/" ? target : target + "/"))
    throw Error(code,
                fmt::format("{}: a link to {}, in which this run has its directory: make it a link to a directory "
                            "of this run alone",
                            directory, target));
  const std::string text = lock_text(target);
  if (!may_be_lock(text)) throw Error(code, target + lock_name + ": is not the lock file of a run; move it away");
  if (kind_of_entry(target + lock_name, code) != FileKind::absent)
    with_remedy("allow it (chmod, chattr), or link checkpoints to another directory",
                [&] { require_writable(target + lock_name, code); });
  require_free_of_runs(directory, target, own_run);
}

}  // namespace

bool CheckpointLink::examine(const std::string& directory) {
  if (kind_of_entry(directory, code) != FileKind::symlink) return true;
  const std::string target = target_of(directory);
  require_own(directory, target, canonical_path(directory_of(directory), code));
  return !is_blank_lock(lock_text(target));
}

std::string run_with_checkpoints_in(const std::string& directory) {
  std::string run;
  quietly([&] {
    const std::string above = directory_of(directory);
    if (name_of(directory) == "checkpoints" && is_of_a_run(above)) run = above;
  });
  quietly([&] {
    const std::string owner = owner_in_lock(lock_text(directory));
    if (owner.empty()) return;
    if (same_file(owner + "/checkpoints", directory, code) || holds_checkpoints(directory, code)) run = owner;
  });
  return run;
}

void CheckpointLink::enter(const std::string& directory) {
  if (kind_of_entry(directory, code) != FileKind::symlink) {
    if (lock_) note_new_owner(locked_, directory_of(directory));
    lock_.reset();
    return;
  }
  const std::string target = target_of(directory), own_run = canonical_path(directory_of(directory), code);
  if (lock_ && locked_ == target && lock_->in_place()) return;
  const std::string seen = lock_text(target), path = target + lock_name;
  const std::string note = own_name() + checkpoints_of + own_run;
  require_own(directory, target, own_run);
  if (lock_ && lock_->follow(path)) {  // the directory was moved
    locked_ = target;
    return;
  }
  FileLock lock(path, note, code);
  if (lock.held_by()) throw in_use(directory, target, *lock.held_by());
  if (lock.earlier_note() != seen) {
    // Another run had the lock after this one had looked.
    write_lock_text(path, lock.earlier_note());
    require_own(directory, target, own_run);
    write_lock_text(path, note);
  }
  if (!lock.supported()) warn(target + ": no locks on this file system; nothing keeps a second job away");
  lock_ = std::move(lock);
  locked_ = target;
}

}  // namespace nanorun
