#include "src/measure/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "src/base/build.hpp"
#include "src/base/file_lock.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t file_version = 2;

constexpr std::uint64_t chunk = 256, columns_chunk = 16;  // steps

std::string joined_phase_names() {
  std::string names;
  for (int phase = 0; phase < Trace::phases; ++phase) {
    names += fmt::format("{}{}", phase > 0 ? "," : "", phase_name(static_cast<Phase>(phase)));
  }
  return names;
}

/// Sizes of a dataset that must have so many axes.
h5::Extent shape_of(const h5::File& file, const std::string& dataset, std::size_t axes) {
  h5::Extent shape = file.growing_shape(dataset);
  if (shape.size() == axes) return shape;
  throw Error(ExitCode::output, fmt::format("{}: {}: has an impossible shape", file.path(), dataset), Scope::this_rank,
              Cause::damage);
}

/// Ranks that the file has room for; of more, a chunk of rows would not be one that HDF5 takes.
std::uint64_t columns_of(const h5::File& file) {
  constexpr std::uint64_t most = 1 << 20;
  const std::uint64_t columns = shape_of(file, "/seconds", 3)[1];
  if (columns <= most) return columns;
  throw Error(ExitCode::output, fmt::format("{}: /seconds: has an impossible shape: {} ranks", file.path(), columns),
              Scope::this_rank, Cause::damage);
}

Busy held(const std::string& path) {
  return {ExitCode::output, path + ": another program has it open, and HDF5's lock on it"};
}

/// What a step takes in memory.
std::uint64_t bytes_of_row(std::uint64_t columns) { return (4 + columns * (Trace::phases + 1)) * sizeof(double); }

template <class T>
std::vector<T> read_first(const h5::File& file, const std::string& dataset, std::uint64_t count) {
  std::vector<T> values(count);
  if (count > 0) file.read<T>(dataset, {0}, {count}, std::span<T>(values));
  return values;
}

/// Bytes that so many steps take at most: whole chunks, and, generously, what HDF5 adds.
std::uint64_t bytes_of(std::uint64_t steps, std::uint64_t columns, const TraceValidations& validations,
                       const TraceGpus& gpus) {
  const std::uint64_t numbers = 4 * (steps + chunk) + (steps + columns_chunk) * columns * (Trace::phases + 1) +
                                2 * (validations.step.size() + chunk) + (gpus.step.size() + chunk) * (3 * columns + 1);
  return 65536 + numbers * sizeof(double) + 64 * steps;
}

/// Earlier programs call the phase "sync" "agree".
bool has_these_phases(const h5::File& file) {
  const std::string phases = file.read_text_attribute("/", "phases"), ours = joined_phase_names();
  const std::size_t at = phases.find(",agree,");
  return phases == ours || (at != std::string::npos && std::string(phases).replace(at, 7, ",sync,") == ours);
}

/// How many elements from the first on ascend. Where a write has failed, zeros may follow.
std::uint64_t ascending(const std::vector<std::int64_t>& steps) {
  const auto end = std::ranges::adjacent_find(steps, std::greater_equal());
  return end == steps.end() ? steps.size() : end - steps.begin() + 1;
}

/// Rows that all the datasets have. Where an append has failed, /step is the shortest, or one is not what it was.
std::uint64_t common_rows(const h5::File& file, std::uint64_t rows, std::initializer_list<const char*> datasets) {
  for (const char* dataset : datasets) rows = std::min(rows, file.growing_shape(dataset).at(0));
  return rows;
}

TraceRows read_rows(const h5::File& file, std::int64_t first_step) {
  if (file.format() != trace_format || file.read_integer_attribute("/", "format_version") != file_version ||
      !has_these_phases(file)) {
    throw Error(ExitCode::output, file.path() + ": written by another version of the program", Scope::this_rank,
                Cause::damage);
  }
  TraceRows rows;
  rows.step = read_first<std::int64_t>(file, "/step", shape_of(file, "/step", 1)[0]);
  rows.step.resize(ascending(rows.step));
  std::uint64_t keep = std::lower_bound(rows.step.begin(), rows.step.end(), first_step) - rows.step.begin();
  keep = common_rows(file, keep, {"/ranks", "/tokens", "/loss", "/seconds", "/communication"});
  const std::uint64_t columns = columns_of(file);
  rows.step.resize(keep);
  rows.ranks = read_first<std::int64_t>(file, "/ranks", keep);
  rows.tokens = read_first<double>(file, "/tokens", keep);
  rows.loss = read_first<double>(file, "/loss", keep);
  rows.seconds.resize(keep * columns * Trace::phases);
  rows.communication.resize(keep * columns);
  if (keep > 0) {
    file.read<double>("/seconds", {0, 0, 0}, {keep, columns, Trace::phases}, std::span<double>(rows.seconds));
    file.read<double>("/communication", {0, 0}, {keep, columns}, std::span<double>(rows.communication));
  }
  return rows;
}

TraceValidations read_validations(const h5::File& file) {
  TraceValidations validations;
  validations.step = read_first<std::int64_t>(file, "/validation_step", shape_of(file, "/validation_step", 1)[0]);
  validations.step.resize(common_rows(file, ascending(validations.step), {"/validation_loss"}));
  validations.loss = read_first<double>(file, "/validation_loss", validations.step.size());
  return validations;
}

/// Looks at the GPUs in steps < first_step; none in a file of an earlier program.
TraceGpus read_gpus(const h5::File& file, std::int64_t first_step) {
  TraceGpus gpus;
  if (!file.exists("/gpu_step")) return gpus;
  gpus.step = read_first<std::int64_t>(file, "/gpu_step", shape_of(file, "/gpu_step", 1)[0]);
  std::uint64_t keep = common_rows(file, ascending(gpus.step), {"/gpu_power", "/gpu_clock", "/gpu_reasons"});
  keep = std::lower_bound(gpus.step.begin(), gpus.step.begin() + static_cast<std::ptrdiff_t>(keep), first_step) -
         gpus.step.begin();
  gpus.step.resize(keep);
  const auto read = [&]<class T>(const char* dataset, std::vector<T>& values) {
    const std::uint64_t columns = shape_of(file, dataset, 2)[1];
    values.resize(keep * columns);
    if (keep > 0) file.read<T>(dataset, {0, 0}, {keep, columns}, std::span<T>(values));
  };
  read("/gpu_power", gpus.power);
  read("/gpu_clock", gpus.clock);
  read("/gpu_reasons", gpus.reasons);
  return gpus;
}

template <class T>
void append_column(h5::File& file, const std::string& name, std::uint64_t at, const std::vector<T>& values) {
  file.resize(name, {at + values.size()});
  file.write<T>(name, {at}, {values.size()}, values);
}

template <class T>
void append_columns(h5::File& file, const std::string& name, std::uint64_t at, std::uint64_t rows,
                    const std::vector<T>& values) {
  file.resize(name, {at + rows, file.growing_shape(name)[1]});
  if (rows > 0) file.write<T>(name, {at, 0}, {rows, values.size() / rows}, values);
}

/// Appends looks after the first `at`; the steps last, as write() does.
void write_gpus(h5::File& file, std::uint64_t at, const TraceGpus& gpus) {
  const std::uint64_t n = gpus.step.size();
  append_columns(file, "/gpu_power", at, n, gpus.power);
  append_columns(file, "/gpu_clock", at, n, gpus.clock);
  append_columns(file, "/gpu_reasons", at, n, gpus.reasons);
  file.flush();
  append_column(file, "/gpu_step", at, gpus.step);
}

/// Appends rows with so many columns after the first `at`, and replaces the validations. The steps, by which readers
/// count the rows, come last: where a write fails, no row is there in part.
void write(h5::File& file, std::uint64_t at, const TraceRows& rows, std::uint64_t columns,
           const TraceValidations& validations) {
  const std::uint64_t n = rows.size();
  append_column(file, "/ranks", at, rows.ranks);
  append_column(file, "/tokens", at, rows.tokens);
  append_column(file, "/loss", at, rows.loss);
  file.resize("/seconds", {at + n, file.growing_shape("/seconds")[1], Trace::phases});
  file.write<double>("/seconds", {at, 0, 0}, {n, columns, Trace::phases}, rows.seconds);
  file.resize("/communication", {at + n, file.growing_shape("/communication")[1]});
  file.write<double>("/communication", {at, 0}, {n, columns}, rows.communication);
  append_column(file, "/validation_loss", 0, validations.loss);
  file.flush();
  append_column(file, "/step", at, rows.step);
  append_column(file, "/validation_step", 0, validations.step);
}

/// What stays of an earlier trace.h5.
struct Earlier {
  std::int64_t begin;  ///< step with which the trace began
  std::uint64_t columns = 0;
  TraceRows rows{};
  TraceValidations validations{};
  TraceGpus gpus{};
};

Earlier read_earlier(const h5::File& file, long first_step) {
  Earlier earlier{.begin = first_step};
  earlier.columns = columns_of(file);
  earlier.rows = read_rows(file, first_step);
  earlier.validations = read_validations(file);
  earlier.validations.truncate(first_step + 1);
  earlier.gpus = read_gpus(file, first_step);
  // Earlier programs do not tell it.
  if (file.has_attribute("/", "first_step")) {
    earlier.begin = static_cast<std::int64_t>(file.read_integer_attribute("/", "first_step"));
  } else if (earlier.rows.size() > 0) {
    earlier.begin = earlier.rows.step.front();
  }
  earlier.begin = std::min<std::int64_t>(earlier.begin, first_step);
  return earlier;
}

/// Steps from `begin` to `end` that are not among `steps`, which ascend, as the log counts them: "steps 3 to 7, 12";
/// empty where none is missing.
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

void create(const std::string& path, std::uint64_t columns, const Earlier& earlier, const std::string& provenance) {
  reserve_space(path, provenance.size() + bytes_of(earlier.rows.size(), columns, earlier.validations, earlier.gpus),
                ExitCode::output);
  h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::output);
  file.write_attribute("/", "format", trace_format);
  file.write_attribute("/", "format_version", file_version);
  file.write_attribute("/", "version", build().version);
  file.write_attribute("/", "commit", build().commit);
  if (!provenance.empty()) file.write_attribute("/", "provenance", provenance);
  file.write_attribute("/", "phases", joined_phase_names());
  file.write_attribute("/", "first_step", static_cast<std::uint64_t>(earlier.begin));
  file.create_growing_dataset<std::int64_t>("/step", {0}, chunk);
  file.create_growing_dataset<std::int64_t>("/ranks", {0}, chunk);
  file.create_growing_dataset<double>("/tokens", {0}, chunk);
  file.create_growing_dataset<double>("/loss", {0}, chunk);
  file.create_growing_dataset<double>("/seconds", {0, columns, Trace::phases}, columns_chunk);
  file.create_growing_dataset<double>("/communication", {0, columns}, columns_chunk);
  file.create_growing_dataset<std::int64_t>("/validation_step", {0}, chunk);
  file.create_growing_dataset<double>("/validation_loss", {0}, chunk);
  file.create_growing_dataset<std::int64_t>("/gpu_step", {0}, chunk);
  file.create_growing_dataset<double>("/gpu_power", {0, columns}, columns_chunk);
  file.create_growing_dataset<double>("/gpu_clock", {0, columns}, columns_chunk);
  file.create_growing_dataset<std::uint64_t>("/gpu_reasons", {0, columns}, columns_chunk);
  write_gpus(file, 0, earlier.gpus);
  write(file, 0, earlier.rows, earlier.columns, earlier.validations);
  file.close();
}

/// Writes a trace.h5 with the rows that stay and a column for each of `ranks` and of the ranks before. Throws Busy,
/// and leaves what is there, where another program holds that for writing.
void start(const std::string& path, std::uint64_t ranks, long first_step, const std::string& provenance) {
  Earlier earlier{.begin = first_step};
  std::optional<h5::File> before;  // open, and so locked against writing, until the new file has its name
  if (has_file(path, ExitCode::output)) {
    if (lock_state(path, false, ExitCode::output) == LockState::held) throw held(path);
    try {
      if (first_step > 0)
        earlier = read_earlier(before.emplace(h5::File::open(path, MPI_COMM_NULL, ExitCode::output)), first_step);
    } catch (const Error& error) {
      if (error.cause() != Cause::damage) throw;
      const std::string aside = set_aside(path, ExitCode::output);
      warn(fmt::format("{}; the file is kept as {}", error.what(), aside));
      earlier = {.begin = first_step};
    }
  }
  const std::string missing = missing_steps(earlier.rows.step, earlier.begin, first_step);
  if (!missing.empty()) {
    warn(fmt::format("{}: lacks {}, which an earlier job could not write", path, missing));
  }
  replace_file(path, ExitCode::output, [&](const std::string& partial) {
    create(partial, std::max(earlier.columns, ranks), earlier, provenance);
  });
}

/// Takes space for what is to be appended, since HDF5 cannot give up in order a file that it fails to write.
void reserve(const std::string& path, std::uint64_t bytes) {
  const std::uint64_t size = file_size(path, ExitCode::output);
  try {
    reserve_space(path, size + bytes, ExitCode::output);
  } catch (...) {
    quietly([&] { truncate_file(path, size, ExitCode::output); });
    throw;
  }
}

/// Collective. [steps, width] of each rank as [steps, ranks, width] on rank 0; empty elsewhere.
std::vector<double> gather_columns(Comm& comm, const std::vector<double>& own, std::size_t width) {
  const std::size_t bytes = width * sizeof(double);
  const std::vector<std::string> parts =
      comm.gather(std::string(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(double)));
  std::vector<double> all(parts.size() * own.size());
  double* to = all.data();
  for (std::size_t row = 0; row < own.size() / width; ++row) {
    for (const std::string& part : parts) std::memcpy(std::exchange(to, to + width), part.data() + row * bytes, bytes);
  }
  return all;
}

/// Removes the first `dropped` of `rows` rows from each column, which holds as many values for each row.
template <class... T>
void drop_rows(std::size_t rows, std::size_t dropped, std::vector<T>&... columns) {
  if (rows == 0) return;
  const auto drop = [&](auto& values) {
    values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / rows * dropped));
  };
  (drop(columns), ...);
}

}  // namespace

void TraceRows::reserve(std::size_t steps) {
  const auto reserve = [](std::size_t count, auto&... values) { (values.reserve(count), ...); };
  reserve(steps, step, ranks, tokens, loss, communication);
  reserve(steps * Trace::phases, seconds);
}

void TraceRows::clear() {
  const auto clear = [](auto&... values) { (values.clear(), ...); };
  clear(step, ranks, tokens, loss, seconds, communication);
}

void TraceRows::append(const TraceRows& rows) {
  const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  add(step, rows.step);
  add(ranks, rows.ranks);
  add(tokens, rows.tokens);
  add(loss, rows.loss);
  add(seconds, rows.seconds);
  add(communication, rows.communication);
}

void TraceRows::drop(std::size_t steps) { drop_rows(size(), steps, seconds, communication, ranks, tokens, loss, step); }

void TraceGpus::drop(std::size_t looks) { drop_rows(step.size(), looks, power, clock, reasons, step); }

void TraceValidations::append(const TraceValidations& later) {
  if (later.step.empty()) return;
  truncate(later.step.front());
  step.insert(step.end(), later.step.begin(), later.step.end());
  loss.insert(loss.end(), later.loss.begin(), later.loss.end());
}

void TraceValidations::truncate(std::int64_t first) {
  const auto keep = std::lower_bound(step.begin(), step.end(), first) - step.begin();
  step.resize(keep);
  loss.resize(keep);
}

std::uint64_t traced_steps(const std::string& path) {
  std::uint64_t steps = 0;
  quietly([&] {
    if (exists(path, ExitCode::output))
      steps = shape_of(h5::File::open(path, MPI_COMM_NULL, ExitCode::output), "/step", 1)[0];
  });
  return steps;
}

TraceFile::TraceFile(Comm& comm, const std::string& path, long first_step, const std::string& provenance)
    : comm_(comm), path_(path), first_step_(first_step), provenance_(provenance) {
  comm_.together([&] {
    if (!comm_.root()) return;
    try {
      begin();
    } catch (const Busy& reason) {
      wait(reason);
    }
  });
}

/// Makes the file this run's.
void TraceFile::begin() {
  start(path_, comm_.size(), first_step_, provenance_);
  own_ = open_to_read(path_, ExitCode::output);
  const h5::File file = h5::File::open(path_, MPI_COMM_NULL, ExitCode::output);
  stored_ = shape_of(file, "/seconds", 3)[0];
  columns_ = columns_of(file);
  stored_gpus_ = shape_of(file, "/gpu_step", 1)[0];
  const TraceValidations since = std::exchange(validations_, read_validations(file));
  validations_.append(since);
  begun_ = true;
}

/// Another run may lie where this one began, another program write the file, and a copy by hard links have the same.
void TraceFile::require_own_file() {
  if (!exists(path_, ExitCode::output)) return;  // as opening it says
  if (!names_file(path_, own_, ExitCode::output)) {
    throw Error(ExitCode::output, path_ + ": is no longer the file of this run");
  }
  if (lock_state(path_, true, ExitCode::output) == LockState::held) throw held(path_);
  unshare_file(path_, ExitCode::output);
  own_ = open_to_read(path_, ExitCode::output);
}

void TraceFile::append(const TraceRows& rows) {
  TraceRows all = rows;
  all.seconds = gather_columns(comm_, rows.seconds, Trace::phases);
  all.communication = gather_columns(comm_, rows.communication, 1);
  // By rank 0 alone: where MPI writes for all ranks, it says a line of its own about every failure.
  comm_.together([&] {
    if (!comm_.root()) return;
    waiting_.append(all);
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
    if (!held_) return;
    warn(fmt::format("{}; it stays so to the end: {} lost", reason_,
                     waiting_.size() == 0 ? "what is not written yet is"
                                          : fmt::format("the rows of steps {} to {} are", waiting_.step.front() + 1,
                                                        waiting_.step.back() + 1)));
  });
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

/// For rank 0. Where this throws, the next call writes the same rows to the same places.
void TraceFile::write_waiting() {
  require_own_file();
  reserve(path_, bytes_of(waiting_.size(), columns_, validations_, gpus_));
  h5::File file = h5::File::open_append(path_, MPI_COMM_NULL, ExitCode::output);
  write_gpus(file, stored_gpus_, gpus_);
  write(file, stored_, waiting_, comm_.size(), validations_);
  file.close();
  stored_gpus_ += gpus_.step.size();
  stored_ += waiting_.size();
  gpus_ = {};
  waiting_.clear();
}

/// For rank 0. Keeps the newest rows, and what was seen of the GPUs meanwhile.
void TraceFile::wait(const Busy& reason) {
  reason_ = reason.what();
  const std::uint64_t row = bytes_of_row(comm_.size()), most = std::max<std::uint64_t>(max_waiting_rows / row, 1);
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
