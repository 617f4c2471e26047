#include "src/run/checkpoint.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "src/base/files_own.hpp"
#include "src/base/output_file.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/optimizer/rule_traits.hpp"
#include "src/run/checkpoint_names.hpp"
#include "src/run/deck_mark.hpp"
#include "src/run/run_files.hpp"
#include "src/storage/h5.hpp"
#include "src/storage/h5_partial.hpp"

namespace nanorun {

namespace {

using Slabs = std::vector<Slab<float>>;

/// Throws where something else stands in the place of a checkpoint, or a file that cannot be opened.
void require_file(const std::string& path) {
  const FileKind found = kind_of(path, ExitCode::checkpoint);
  if (found == FileKind::regular) {
    try {
      open_to_read(path, ExitCode::checkpoint);
    } catch (const Error& error) {
      throw checkpoint_error(
          fmt::format("{}: make it readable, or move it away to continue from an earlier one", error.what()));
    }
    return;
  }
  throw checkpoint_error(fmt::format("{}: {} stands where a checkpoint of the run belongs: move it away", path,
                                     found == FileKind::directory ? "a directory"
                                     : found == FileKind::absent  ? "a link to nothing"
                                                                  : "a device, FIFO or socket"));
}

/// Whether a key may have made one of the tensors differ.
bool decides(const std::string& key, const std::vector<std::string>& tensors) {
  bool known = true;
  for (const std::string& tensor : tensors) {
    if (tensor.starts_with("/average/") && key.starts_with("average.")) return true;
    if (tensor.starts_with("/outer/") && key == "optimizer.outer_every") return true;
    if (tensor.starts_with("/average/") || tensor.starts_with("/outer/")) continue;
    const StateGroup* const group = state_group_of(tensor);
    if (group == nullptr || group->keys.empty()) {
      known = false;
    } else if (std::ranges::any_of(group->keys, [&](const std::string& pattern) { return matches(pattern, key); })) {
      return true;
    }
  }
  return !known && (key.starts_with("optimizer.") || key.starts_with("model.") || key.starts_with("group."));
}

/// " (key: old -> new; ...)", the changes of the deck since the file was written that explain how it differs.
std::string cause_of_difference(const CheckpointContents& contents, const std::string& deck, const std::string& path) {
  std::vector<std::string> texts;
  quietly([&] {
    for (const KeyChange& change : deck_changes(contents.header.deck, parse_deck(deck, path, {}), path)) {
      if (decides(change.key, contents.differing)) texts.push_back(change.text);
    }
  });
  return texts.empty() ? "" : fmt::format(" ({})", fmt::join(texts, "; "));
}

/// The marks of a file's deck and of those before it, the newest last.
std::string marks_of(const CheckpointHeader& header) {
  constexpr std::size_t most = 3700;  // an attribute of HDF5 holds less than 64 KiB
  const std::string mark = run_mark(header.deck);
  std::string marks = header.earlier_decks;
  if (const std::size_t at = marks.find(mark); at != std::string::npos) marks.erase(at, mark.size());
  marks += mark;
  return marks.substr(marks.size() - std::min(marks.size(), most * mark.size()));
}

}  // namespace

std::string model_fingerprint(const std::string& layout) { return fmt::format("{:016x}", h5::checksum(layout)); }

Checkpoints::Checkpoints(Comm& comm, const CheckpointConfig& config, std::string directory, std::string deck,
                         std::string model)
    : comm_(comm),
      config_(config),
      hints_(parse_mpi_hints(config.mpi_hints).value_or(MpiHints{})),
      directory_(std::move(directory)),
      mark_(run_mark(deck)) {
  header_.deck = std::move(deck);
  header_.model = std::move(model);
}

std::string Checkpoints::path_of(long step) const { return directory_ + "/" + name_of_step(step); }

std::vector<std::string> Checkpoints::list() const {
  std::map<long, std::string> files;
  for (const std::string& name : list_directory(directory_, ExitCode::checkpoint)) {
    if (const std::optional<long> step = step_of(name)) files[*step] = directory_ + "/" + name;
  }
  std::vector<std::string> paths;
  for (const auto& [step, path] : files) paths.push_back(path);
  return paths;
}

/// Makes the directory and removes the files of writes that were cut short. A user's file with such a name stays; if
/// the next write needs the name, the file is renamed.
void Checkpoints::make_directory(const std::string& next) {
  if (!CheckpointLink::examine(directory_)) require_known_owner();
  link_.enter(directory_);
  if (kind_of_entry(directory_, ExitCode::checkpoint) != FileKind::symlink)
    require_own_place(directory_, FileKind::directory, ExitCode::checkpoint);
  make_directories(directory_, ExitCode::checkpoint);
  opened_ = open_directory(directory_, ExitCode::checkpoint);
  for (const std::string& name : list_directory(directory_, ExitCode::checkpoint)) {
    if (is_lock_of_mpi(name)) quietly([&] { remove_file(directory_ + "/" + name, ExitCode::checkpoint); });
  }
  for (const auto& [path, warning] : unfinished(next)) {
    if (warning.empty()) {
      remove_file(path, ExitCode::checkpoint);
      continue;
    }
    if (path == next) {
      set_aside(path, ExitCode::checkpoint);
    } else {
      kept_.insert(path);
    }
    warn(warning);
  }
}

/// `next`: the partial file of the next write, which is renamed if it is not nanorun's. Other files of which a warning
/// has told are left out, so that no save reads them again.
std::vector<Checkpoints::Unfinished> Checkpoints::unfinished(const std::string& next) const {
  std::vector<Unfinished> found;
  for (const std::string& name : list_directory(directory_, ExitCode::checkpoint)) {
    if (!step_of_unfinished(name)) continue;
    const std::string path = directory_ + "/" + name;
    if (path != next && kept_.contains(path)) continue;
    const char* whose = "no checkpoint of nanorun's";  // also where it cannot be read
    quietly([&] {
      if (!h5::is_foreign_partial(path, checkpoint_format, ExitCode::checkpoint)) whose = nullptr;
    });
    // A write that was cut short leaves no file that verifies.
    quietly([&] {
      if (whose != nullptr) return;
      Comm alone(MPI_COMM_SELF);
      if (other_part(read_checkpoint_header(alone, path)) == nullptr) return;
      verify_checkpoint(alone, path);
      whose = "a checkpoint of another run";
    });
    std::string warning;
    if (whose != nullptr) {
      const FileKind kind = kind_of_entry(path, ExitCode::checkpoint);
      warning =
          fmt::format("{}: {}; {} is kept", path, whose, kind == FileKind::regular ? "the file" : kind_text(kind));
      if (path == next) warning += " as " + free_name(path, ExitCode::checkpoint);
    }
    found.push_back({path, warning});
  }
  return found;
}

/// What tells a checkpoint from those that a start of this run may have written; null where nothing does.
const char* Checkpoints::other_part(const CheckpointHeader& found) const {
  if (found.model != header_.model) return "model";
  const std::string mark = run_mark(found.deck);
  const bool own = mark == mark_ || header_.earlier_decks.find(mark) != std::string::npos;
  return mark.empty() || !own ? "training" : nullptr;
}

/// Throws unless this start of the run or an earlier one may have written the checkpoint.
void Checkpoints::require_own(const std::string& path) const {
  Comm alone(MPI_COMM_SELF);
  const char* const other = other_part(read_checkpoint_header(alone, path));
  if (other == nullptr) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: a checkpoint of another {}, which this run has not written", path, other));
}

/// Gives a finished file the name of its checkpoint. What else has that name, and is no checkpoint of this run, is kept
/// under another; if it cannot be renamed, the finished file is.
void Checkpoints::name_finished(const std::string& partial, const std::string& path) const {
  constexpr ExitCode code = ExitCode::checkpoint;
  const auto is_own = [this](const std::string& there) {
    require_own(there);
    return true;
  };
  try {
    require_movable(path, code);
    clear_own_place(path, code, is_own);
    rename_file(partial, path, code);
  } catch (const Error& error) {
    const std::string free = free_name(path, code);
    quietly([&] { rename_file(partial, free, code); });
    const std::string kept = exists(free, code) ? free : partial;
    if (!exists(kept, code)) throw;
    throw checkpoint_error(fmt::format("{}; the finished checkpoint is kept as {}", error.what(), kept));
  }
}

/// Removes what neither `keep` nor the milestones hold.
void Checkpoints::prune(long step) {
  std::vector<std::string> files;
  for (const std::string& path : list()) {
    if (step_of(name_of(path)).value() <= step) files.push_back(path);
  }
  const auto keep = static_cast<std::size_t>(std::max(config_.keep, 1));
  for (std::size_t i = 0; i + keep < files.size(); ++i) {
    const int milestone = config_.milestone_every;
    if (milestone > 0 && step_of(name_of(files[i])).value() % milestone == 0) continue;
    if (same_file(files[i], config_.restart, ExitCode::checkpoint)) continue;
    if (same_file(files[i], config_.weights, ExitCode::checkpoint)) continue;
    try {
      require_own(files[i]);
      remove_file(files[i], ExitCode::checkpoint);
    } catch (const Error& error) {
      if (kept_.insert(files[i]).second) warn(fmt::format("{}; the file is kept", error.what()));
    }
  }
}

/// Collective. Makes way for the file of this progress and returns its header.
CheckpointHeader Checkpoints::prepare(const Progress& progress) {
  comm_.together([&] {
    if (comm_.root()) make_directory(partial_of(path_of(progress.step)));
  });
  CheckpointHeader header = header_;
  header.progress = progress;
  return header;
}

std::string Checkpoints::save(const Progress& progress, const Slabs& slabs) {
  const CheckpointHeader header = prepare(progress);
  const std::string partial = partial_of(path_of(progress.step));
  write_checkpoint(comm_, partial, header, slabs, hints_);
  return conclude(partial, progress.step);
}

void Checkpoints::begin(const Progress& progress, const Slabs& slabs) {
  CheckpointHeader header = prepare(progress);
  pending_ =
      std::make_unique<BackgroundCheckpoint>(comm_, partial_of(path_of(progress.step)), std::move(header), slabs);
}

std::string Checkpoints::finish() {
  const std::unique_ptr<BackgroundCheckpoint> written = std::move(pending_);
  written->finish();
  return conclude(written->path(), written->step());
}

/// Collective. Gives the finished file of a step its name, removes older checkpoints, and returns its path.
std::string Checkpoints::conclude(const std::string& partial, long step) {
  const std::string path = path_of(step);
  comm_.together([&] {
    if (!comm_.root()) return;
    // What has this name elsewhere is another run's.
    if (moved()) throw checkpoint_error(directory_ + ": was moved away while a checkpoint was written");
    name_finished(partial, path);
  });
  try {
    if (comm_.root()) prune(step);
  } catch (const Error& error) {
    warn(comm_, fmt::format("{}; older checkpoints are kept", error.what()));
  }
  return path;
}

bool Checkpoints::moved() const {
  bool in_place = false;
  quietly([&] { in_place = names_file(directory_, opened_, ExitCode::checkpoint); });
  return !in_place;
}

/// Throws unless the newest checkpoint that can be read has the deck of this start or the one in the run's directory.
void Checkpoints::require_known_owner() const {
  Comm alone(MPI_COMM_SELF);
  const std::vector<std::string> files = list();
  for (auto path = files.rbegin(); path != files.rend(); ++path) {
    std::optional<CheckpointHeader> found;
    quietly([&] { found = read_checkpoint_header(alone, *path); });
    if (!found) continue;
    std::optional<std::string> last_deck;
    quietly([&] { last_deck = text_of_run(directory_of(directory_) + "/deck.toml"); });
    const std::string mark = run_mark(found->deck);
    if (found->deck == last_deck) return;
    if (!mark.empty() && (mark == mark_ || mark == run_mark(last_deck.value_or("")))) return;
    throw checkpoint_error(fmt::format(
        "{}: a link to {}, which holds checkpoints of another run, and no lock file there names it: make it a "
        "link to a directory of this run alone; if they are this run's, start it once with the deck of {}",
        directory_, canonical_path(directory_, ExitCode::checkpoint), *path));
  }
}

void Checkpoints::require_usable_directory() const {
  if (!CheckpointLink::examine(directory_)) require_known_owner();
  if (kind_of_entry(directory_, ExitCode::checkpoint) != FileKind::symlink)
    require_own_place(directory_, FileKind::directory, ExitCode::checkpoint);
  if (config_.restart != "auto") return;
  const std::vector<std::string> files = list();
  if (!files.empty()) require_file(files.back());
}

/// Throws for a file that does not hold what the run has.
void Checkpoints::refuse(const std::string& path, const CheckpointContents& contents) const {
  if (contents.header.model != header_.model)
    throw checkpoint_error(
        fmt::format("{}: belongs to another model: {}; set the deck's model as it was, or change "
                    "run.name, or set checkpoint.restart = \"none\" to start from the beginning",
                    path, contents.difference));
  // The tensors' checksums, which have their names, tell a damaged file from a sound one of other state.
  try {
    verify_checkpoint(comm_, path);
  } catch (const Error& error) {
    if (error.cause() != Cause::damage) throw;
    throw Error(ExitCode::checkpoint, fmt::format("{}: {}; the file is damaged", path, contents.difference),
                Scope::all_ranks, Cause::damage);
  }
  throw checkpoint_error(fmt::format(
      "{}: is sound, but holds other state of the optimizer than the deck asks for: {}{}; set it as it was, or begin "
      "another run with these weights alone (checkpoint.weights)",
      path, contents.difference, cause_of_difference(contents, header_.deck, path)));
}

Progress Checkpoints::load(const std::string& path, const Slabs& slabs) {
  const CheckpointContents contents = read_checkpoint(comm_, path, header_.model, slabs);
  if (!contents.difference.empty()) refuse(path, contents);
  read_tensors(comm_, path, contents.header, slabs);
  restored_file_ = path;
  restored_ = contents.header;
  const bool same = run_mark(restored_.deck) == mark_;
  header_.earlier_decks = same ? restored_.earlier_decks : marks_of(restored_);
  return contents.header.progress;
}

std::optional<Progress> Checkpoints::load_newest(const std::vector<std::string>& files, const Slabs& slabs) {
  for (auto path = files.rbegin(); path != files.rend(); ++path) {
    try {
      comm_.together([&] {
        if (comm_.root()) require_file(*path);
      });
      const Progress progress = load(*path, slabs);
      if (name_of(*path) == name_of_step(progress.step)) return progress;
      warn(comm_, fmt::format("{}: contains step {}, not that of its name; skipped", *path, progress.step));
    } catch (const Error& error) {
      // Passing over a sound file, which may be readable tomorrow, would train its steps again and then remove it.
      if (error.cause() != Cause::damage) throw;
      warn(comm_, fmt::format("{}; skipped", error.what()));
    }
  }
  if (files.empty()) return std::nullopt;
  throw checkpoint_error(
      fmt::format("{}: none of its checkpoints can be read; remove them or set checkpoint.restart = \"none\" to start "
                  "from the beginning",
                  directory_));
}

std::optional<Progress> Checkpoints::restore(const Slabs& slabs) {
  comm_.together([&] {
    if (!comm_.root()) return;
    require_usable_directory();
    link_.enter(directory_);
  });
  return choose(slabs);
}

std::optional<Progress> Checkpoints::plan_restore(const Slabs& slabs) { return choose(slabs); }

/// Resolves config.restart.
std::optional<Progress> Checkpoints::choose(const Slabs& slabs) {
  if (config_.restart == "none") return std::nullopt;
  if (config_.restart != "auto") {
    comm_.together([&] {
      if (kind_of(config_.restart, ExitCode::checkpoint) != FileKind::directory) return;
      throw checkpoint_error(
          fmt::format("checkpoint.restart = {}: a directory; name a file in it or use \"auto\", the "
                      "newest in the run's own directory",
                      config_.restart));
    });
    return load(config_.restart, slabs);
  }
  // Rank 0's view, since ranks on other nodes may see the directory later.
  std::string joined;
  comm_.together([&] {
    if (!comm_.root()) return;
    joined = fmt::format("{}", fmt::join(list(), "\n"));
  });
  joined = comm_.broadcast(joined);
  std::vector<std::string> files;
  for (std::size_t at = 0; at < joined.size();) {
    const std::size_t end = std::min(joined.find('\n', at), joined.size());
    files.push_back(joined.substr(at, end - at));
    at = end + 1;
  }
  return load_newest(files, slabs);
}

bool Checkpoints::continues_here() const {
  return step_of(name_of(restored_file_)) && same_file(directory_of(restored_file_), directory_, ExitCode::checkpoint);
}

std::vector<std::string> Checkpoints::set_newer_aside(long step) const {
  std::vector<std::string> lines;
  const std::vector<std::string> files = list();
  for (auto path = files.rbegin(); path != files.rend() && step_of(name_of(*path)).value() > step; ++path) {
    lines.push_back(fmt::format("renamed {} to {}, since the run continues from step {}", *path,
                                set_aside(*path, ExitCode::checkpoint), step));
  }
  return lines;
}

}  // namespace nanorun
