// Whether a run can write its checkpoints, and how long one takes: looked at and tried before the run trains.

#include <algorithm>
#include <chrono>

#include "src/base/files_own.hpp"
#include "src/base/output_file.hpp"
#include "src/base/text.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/checkpoint_layout.hpp"
#include "src/run/checkpoint_names.hpp"

namespace nanorun {

namespace {

using Slabs = std::vector<Slab<float>>;

}  // namespace

void Checkpoints::require_free_names(const DueCheckpoints& due) const {
  const char* const remedy = "allow it (chmod, chattr), or change run.name or run.outputs";
  with_remedy(remedy, [&] { require_possible_directory(directory_, ExitCode::checkpoint); });
  const auto needs = [&](long step) {
    const bool between = config_.every > 0 && step % config_.every == 0 && step > due.after && step < due.last;
    return step == due.last || (due.directory_stays && between);
  };
  for (const std::string& name : list_directory(directory_, ExitCode::checkpoint)) {
    const std::string path = directory_ + "/" + name;
    // Checkpoints that are newer than the one from which the run continues get other names.
    if (due.directory_stays && step_of(name).value_or(0) > due.after) require_movable(path, ExitCode::checkpoint);
    const std::optional<long> step = step_of_unfinished(name);
    if (!step || !needs(*step)) continue;
    require_own_place(path, FileKind::regular, ExitCode::checkpoint);
    require_movable(path, ExitCode::checkpoint);
  }
  const std::string obstacle = obstacle_to_renaming(partial_of(path_of(due.last)), ExitCode::checkpoint);
  if (obstacle.empty()) return;
  throw checkpoint_error(
      fmt::format("{}: no checkpoint could be renamed or removed there: {}: {}", directory_, obstacle, remedy));
}

std::vector<std::string> Checkpoints::warnings(const DueCheckpoints& due) const {
  std::vector<std::string> lines;
  for (const auto& [path, warning] : unfinished(partial_of(path_of(due.last)))) {
    if (!warning.empty()) lines.push_back(warning);
  }
  return lines;
}

void Checkpoints::probe(const DueCheckpoints& due, const Slabs& slabs) {
  trial_step_ = due.last;
  const std::string path = partial_of(path_of(trial_step_));
  comm_.together([&] {
    if (!comm_.root()) return;
    require_free_names(due);
    require_space(due, slabs);
    make_directory(path);
  });
  std::vector<float> row(1, 1.0f);
  const Slab<float> slab{
      "/weights/probe", static_cast<std::uint64_t>(comm_.size()), 1, static_cast<std::uint64_t>(comm_.rank()), 1, row};
  CheckpointHeader header = header_;
  header.progress.step = due.last;
  write_checkpoint(comm_, path, header, {slab}, hints_);
  comm_.together([&] {
    if (comm_.root()) remove_file(path, ExitCode::checkpoint);
  });
}

/// Writes one row in `divisor` of each tensor, at least one. Each rank writes the same share of a tensor as in a whole
/// checkpoint.
Trial Checkpoints::try_file(const Slabs& slabs, std::uint64_t divisor) {
  const auto scaled = [&](std::uint64_t row) { return (row + divisor - 1) / divisor; };
  Trial trial;
  Slabs parts;
  for (const Slab<float>& slab : slabs) {
    Slab<float> part = slab;
    part.total_rows = scaled(slab.total_rows);
    part.first_row = scaled(slab.first_row);
    part.row_count = scaled(slab.first_row + slab.row_count) - part.first_row;
    part.data = slab.data.first(part.row_count * slab.cols);
    trial.bytes += part.total_rows * part.cols * sizeof(float);
    parts.push_back(part);
  }
  const std::string path = partial_of(path_of(trial_step_));
  comm_.together([&] {
    if (comm_.root()) make_directory(path);
  });
  const auto begin = std::chrono::steady_clock::now();
  write_checkpoint(comm_, path, header_, parts, hints_);
  trial.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  comm_.together([&] {
    if (comm_.root()) remove_file(path, ExitCode::checkpoint);
  });
  return trial;
}

double Checkpoints::foretell_seconds(const Slabs& slabs, std::uint64_t enough) {
  constexpr std::uint64_t part = 32;  // least share 1 / part of a checkpoint that foretells its time
  std::uint64_t bytes = 0;
  for (const Slab<float>& slab : slabs) bytes += slab.total_rows * slab.cols * sizeof(float);
  const std::uint64_t divisor = std::max<std::uint64_t>(1, bytes / std::max(enough, bytes / part));
  if (divisor == 1) return try_file(slabs, divisor).seconds;
  const Trial small = try_file(slabs, bytes);
  return seconds_of_file(bytes, small, try_file(slabs, divisor));
}

void Checkpoints::require_space(const DueCheckpoints& due, const Slabs& slabs) const {
  const std::uint64_t bytes = checkpoint_bytes(header_, slabs);
  if (bytes > file_size_limit()) {
    throw checkpoint_error(
        fmt::format("{}: a checkpoint needs {}, but the file size limit (ulimit -f) is {}: raise the limit", directory_,
                    in_units(bytes, "B", 1024), in_units(file_size_limit(), "B", 1024)));
  }
  const long further = due.last - due.after;
  const std::uint64_t written = config_.every > 0 ? further / config_.every + 1 : 1;
  // Beyond those that a run keeps, one more is there while it is written.
  const std::uint64_t kept = std::min<std::uint64_t>(written, config_.keep + 1);
  const std::uint64_t there = std::min<std::uint64_t>(list().size(), kept);
  const std::uint64_t milestones = config_.milestone_every > 0 ? further / config_.milestone_every : 0;
  const std::uint64_t needed = (kept - std::min(there, kept - 1) + milestones) * bytes;
  const std::uint64_t free = free_space(existing_part(directory_, ExitCode::checkpoint), ExitCode::checkpoint);
  if (needed <= free) return;
  const std::string message = fmt::format(
      "{}: checkpoints will need {} more, but {} are free: free disk space, keep fewer (checkpoint.keep, "
      "checkpoint.milestone_every), or set run.outputs to another file system",
      directory_, in_units(needed, "B", 1024), in_units(free, "B", 1024));
  if (config_.on_failure == OnFailure::stop) throw checkpoint_error(message);
  warn(comm_, message);
}

}  // namespace nanorun
