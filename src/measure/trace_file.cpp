#include "src/measure/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "src/base/file_lock.hpp"
#include "src/base/files_own.hpp"
#include "src/measure/trace.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

Busy held(const std::string& path) {
  return {ExitCode::output, path + ": another program has it open, and HDF5's lock on it"};
}

/// Bytes of a step's row in memory.
std::uint64_t bytes_of_row(const TraceWidth& width) {
  return (4 + width.columns * measured_numbers) * sizeof(double) + width.groups * bytes_of_group;
}

/// The steps of [begin, end) that are missing in `steps`, which ascend, counted from 1 as in the log: "steps 3 to 7,
/// 12"; empty where none is missing.
std::string missing_steps(const std::vector<std::int64_t>& steps, std::int64_t begin, std::int64_t end) {
  std::string text;
  const auto add = [&](std::int64_t first, std::int64_t last) {
    if (first > last) return;
    text += text.empty() ? "steps " : ", ";
    text += first == last ? fmt::format("{}", first + 1) : fmt::format("{} to {}", first + 1, last + 1);
  };
  for (const std::int64_t step : steps) {
    add(begin, step - 1);
    begin = std::max(begin, step + 1);
  }
  add(begin, end - 1);
  return text;
}

/// Throws where nanorun has not written the file.
void require_trace(const h5::File& file) {
  if (file.format() == trace_format) return;
  throw Error(ExitCode::output, file.path() + ": not written by this run", Scope::this_rank, Cause::damage);
}

/// What an earlier run has left in trace.h5.
struct Remains {
  EarlierTrace earlier;
  std::optional<h5::File> file;  ///< stays open, so that no other program writes to it, until a new one replaces it
  std::string damage;            ///< why nothing of the file can be kept
  std::string warning;           ///< of damage, or of steps that are missing
};

/// Throws Busy where another program has the file open for writing.
Remains look(const std::string& path, long first_step) {
  Remains remains;
  remains.earlier.begin = first_step;
  if (!has_file(path, ExitCode::output) || file_size(path, ExitCode::output) == 0) return remains;
  if (lock_state(path, LockKind::shared, ExitCode::output) == LockState::held) throw held(path);
  try {
    require_trace(remains.file.emplace(h5::File::open(path, MPI_COMM_NULL, ExitCode::output)));
    if (first_step > 0) remains.earlier = read_earlier_trace(*remains.file, first_step);
  } catch (const Error& error) {
    if (error.cause() != Cause::damage) throw;
    remains.earlier = {.begin = first_step};
    remains.damage = error.what();
    remains.warning = fmt::format("{}; the file is kept as {}", error.what(), free_name(path, ExitCode::output));
    return remains;
  }
  const std::string missing = missing_steps(remains.earlier.rows.step, remains.earlier.begin, first_step);
  if (!missing.empty())
    remains.warning = fmt::format("{}: lacks {}, which an earlier job could not write", path, missing);
  return remains;
}

/// Replaces trace.h5 by one with what stays of it, and room for rows of this width beside those of the earlier run.
/// Throws Busy, and leaves the file, where another program has it open for writing.
void start(const std::string& path, const TraceWidth& width, long first_step, const std::string& provenance) {
  const Remains remains = look(path, first_step);
  const EarlierTrace& earlier = remains.earlier;
  if (!remains.damage.empty()) set_aside(path, ExitCode::output);
  if (!remains.warning.empty()) warn(remains.warning);
  clear_own_partial(partial_of(path), ExitCode::output);
  replace_file(path, ExitCode::output, [&](const std::string& partial) {
    create_trace(partial, earlier.width.wider(width), earlier, provenance);
  });
}

/// Opens the file to append so many bytes, for which it takes disk space first, since HDF5 cannot close a file properly
/// after a write has failed. Leaves the file as it is where somebody has written something else into it.
h5::File open_with_space(const std::string& path, std::uint64_t bytes) {
  const std::uint64_t size = file_size(path, ExitCode::output);
  try {
    reserve_space(path, size + bytes, ExitCode::output);
    h5::File file = h5::File::open_append(path, MPI_COMM_NULL, ExitCode::output);
    require_trace(file);
    return file;
  } catch (...) {
    quietly([&] { truncate_file(path, size, ExitCode::output); });
    throw;
  }
}

}  // namespace

std::string trace_warning(const std::string& path, long first_step) {
  std::string warning;
  quietly([&] { warning = look(path, first_step).warning; });
  return warning;
}

TraceFile::TraceFile(Comm& comm, const TraceColumns& columns, const std::string& path, long first_step,
                     const std::string& provenance)
    : comm_(comm),
      width_{static_cast<std::uint64_t>(columns.count()), static_cast<std::uint64_t>(columns.groups())},
      path_(path),
      first_step_(first_step),
      provenance_(provenance) {
  comm_.together([&] {
    if (!comm_.root()) return;
    try {
      begin();
    } catch (const Busy& reason) {
      wait(reason);
    }
  });
}

/// Replaces an earlier run's file by this run's.
void TraceFile::begin() {
  start(path_, width_, first_step_, provenance_);
  own_ = open_to_read(path_, ExitCode::output);
  const h5::File file = h5::File::open(path_, MPI_COMM_NULL, ExitCode::output);
  stored_ = trace_sizes(file);
  const TraceValidations since = std::exchange(validations_, read_trace_validations(file));
  validations_.append(since);
  begun_ = true;
}

/// Throws where another run's file is there now, Busy where another program has the file open for writing. Replaces a
/// file with further hard links by a copy, so that what is written does not change the others.
void TraceFile::require_own_file() {
  if (!exists(path_, ExitCode::output)) return;  // opening it reports that
  if (!names_file(path_, own_, ExitCode::output)) {
    throw Error(ExitCode::output, path_ + ": is no longer the file of this run");
  }
  if (lock_state(path_, LockKind::exclusive, ExitCode::output) == LockState::held) throw held(path_);
  unshare_file(path_, ExitCode::output);
  own_ = open_to_read(path_, ExitCode::output);
}

void TraceFile::append(const TraceRows& rows) {
  // Rank 0 alone writes: if MPI wrote for all ranks, it would print a line of its own about every failure.
  comm_.together([&] {
    if (!comm_.root()) return;
    waiting_.append(rows);
    write_or_wait();
  });
}

void TraceFile::finish(const TraceRows& rows) {
  constexpr std::chrono::seconds patience(3);
  append(rows);
  comm_.together([&] {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (held_ && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      write_or_wait();
    }
    if (held_) leave_to_readers();
    if (!held_) return;
    warn(fmt::format("{}; it stays so to the end: {} lost", reason_,
                     waiting_.size() == 0 ? "what is not written yet is"
                                          : fmt::format("the rows of steps {} to {} are", waiting_.step.front() + 1,
                                                        waiting_.step.back() + 1)));
  });
}

/// For rank 0. Puts a copy in the place of a file that other programs only read, which keep theirs as it was, and
/// writes to it.
void TraceFile::leave_to_readers() {
  if (!begun_) return;
  try {
    if (!names_file(path_, own_, ExitCode::output)) return;
    if (lock_state(path_, LockKind::shared, ExitCode::output) == LockState::held) return;
    replace_by_copy(path_, ExitCode::output);
    own_ = open_to_read(path_, ExitCode::output);
  } catch (const std::exception&) {
    return;  // the rows are lost, and the caller says so
  }
  write_or_wait();
}

/// For rank 0.
void TraceFile::write_or_wait() {
  try {
    if (!begun_) begin();
    write_waiting();
  } catch (const Busy& reason) {
    return wait(reason);
  }
  if (!std::exchange(held_, false)) return;
  const std::uint64_t dropped = std::exchange(dropped_, 0);
  complain(fmt::format("{}: is written again{}", path_,
                       dropped == 0 ? ""
                                    : fmt::format("; the rows of {} steps did not fit the memory for rows that "
                                                  "wait and are lost",
                                                  dropped)));
}

/// For rank 0. After an exception the next call writes the same rows again.
void TraceFile::write_waiting() {
  require_own_file();
  h5::File file = open_with_space(path_, trace_bytes(waiting_.size(), stored_.width, validations_, gpus_));
  append_gpus(file, stored_.looks, gpus_);
  append_rows(file, stored_.rows, waiting_, width_.columns, validations_);
  file.close();
  stored_.looks += gpus_.step.size();
  stored_.rows += waiting_.size();
  gpus_ = {};
  waiting_.clear();
}

/// For rank 0. Keeps the newest rows, and what was seen of the GPUs meanwhile.
void TraceFile::wait(const Busy& reason) {
  reason_ = reason.what();
  const std::uint64_t row = bytes_of_row(width_), most = std::max<std::uint64_t>(max_waiting_rows / row, 1);
  if (!std::exchange(held_, true)) {
    warn(
        fmt::format("{}; what is traced waits in memory, the newest {} steps at most, and is written once the file is "
                    "free",
                    reason.what(), most));
  }
  if (waiting_.size() <= most) return;
  dropped_ += waiting_.size() - most;
  waiting_.drop(waiting_.size() - most);
  gpus_.drop(std::lower_bound(gpus_.step.begin(), gpus_.step.end(), waiting_.step.front()) - gpus_.step.begin());
}

}  // namespace nanorun
