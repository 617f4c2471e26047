#include "src/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>

#include "src/build.hpp"
#include "src/files.hpp"
#include "src/h5.hpp"

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
  const std::uint64_t columns = shape_of(file, "/seconds", 3)[1];
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
  read("/gpu_power", gpus.power), read("/gpu_clock", gpus.clock), read("/gpu_reasons", gpus.reasons);
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

void create(const std::string& path, std::uint64_t columns, const TraceRows& rows, std::uint64_t row_columns,
            const TraceValidations& validations, const TraceGpus& gpus, const std::string& provenance) {
  reserve_space(path, provenance.size() + bytes_of(rows.size(), columns, validations, gpus), ExitCode::output);
  h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::output);
  file.write_attribute("/", "format", trace_format);
  file.write_attribute("/", "format_version", file_version);
  file.write_attribute("/", "version", build().version);
  file.write_attribute("/", "commit", build().commit);
  if (!provenance.empty()) file.write_attribute("/", "provenance", provenance);
  file.write_attribute("/", "phases", joined_phase_names());
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
  write_gpus(file, 0, gpus);
  write(file, 0, rows, row_columns, validations);
  file.close();
}

/// Writes a trace.h5 with the rows that stay and a column for each of `ranks` and of the ranks before.
void start(const std::string& path, std::uint64_t ranks, long first_step, const std::string& provenance) {
  TraceRows rows;
  TraceValidations validations;
  TraceGpus gpus;
  std::uint64_t columns = 0;
  if (has_file(path, ExitCode::output) && first_step > 0) {
    try {
      const h5::File file = h5::File::open(path, MPI_COMM_NULL, ExitCode::output);
      columns = shape_of(file, "/seconds", 3)[1];
      rows = read_rows(file, first_step);
      validations = read_validations(file);
      validations.truncate(first_step + 1);
      gpus = read_gpus(file, first_step);
    } catch (const Error& error) {
      if (error.cause() != Cause::damage) throw;
      const std::string aside = set_aside(path, ExitCode::output);
      warn(fmt::format("{}; the file is kept as {}", error.what(), aside));
      rows = {}, validations = {}, gpus = {}, columns = 0;
    }
  }
  replace_file(path, ExitCode::output, [&](const std::string& partial) {
    create(partial, std::max(columns, ranks), rows, columns, validations, gpus, provenance);
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

}  // namespace

void TraceRows::reserve(std::size_t steps) {
  step.reserve(steps), ranks.reserve(steps), tokens.reserve(steps), loss.reserve(steps);
  seconds.reserve(steps * Trace::phases), communication.reserve(steps);
}

void TraceRows::clear() {
  step.clear(), ranks.clear(), tokens.clear(), loss.clear(), seconds.clear(), communication.clear();
}

void TraceValidations::truncate(std::int64_t first) {
  const auto keep = std::lower_bound(step.begin(), step.end(), first) - step.begin();
  step.resize(keep), loss.resize(keep);
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
    : comm_(comm), path_(path) {
  comm_.together([&] {
    if (!comm_.root()) return;
    start(path_, comm_.size(), first_step, provenance);
    own_ = open_to_read(path_, ExitCode::output);
    const h5::File file = h5::File::open(path_, MPI_COMM_NULL, ExitCode::output);
    const h5::Extent seconds = shape_of(file, "/seconds", 3);
    stored_ = seconds[0], columns_ = seconds[1];
    validations_ = read_validations(file);
    stored_gpus_ = shape_of(file, "/gpu_step", 1)[0];
  });
}

/// Another run may lie where this one began, and a copy by hard links have the same file.
void TraceFile::require_own_file() {
  if (!exists(path_, ExitCode::output)) return;  // as opening it says
  if (!names_file(path_, own_, ExitCode::output)) {
    throw Error(ExitCode::output, path_ + ": is no longer the file of this run");
  }
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
    require_own_file();
    reserve(path_, bytes_of(rows.size(), columns_, validations_, gpus_));
    h5::File file = h5::File::open_append(path_, MPI_COMM_NULL, ExitCode::output);
    write_gpus(file, stored_gpus_, gpus_);
    write(file, stored_, all, comm_.size(), validations_);
    file.close();
    stored_gpus_ += gpus_.step.size();
    gpus_ = {};
  });
  stored_ += rows.size();
}

}  // namespace nanorun
