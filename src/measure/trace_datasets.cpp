#include "src/measure/trace_datasets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <span>

#include "src/base/build.hpp"
#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/measure/trace.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t file_version = 2;

constexpr std::uint64_t chunk = 256, columns_chunk = 16;  // steps

/// Files of earlier programs lack this dataset.
constexpr const char* between = "/communication_between";
/// Files in which each column of each row is a rank lack these: their second axis has the groups.
constexpr const char* group_ranks = "/group_ranks";
constexpr const char* quantiles = "/quantiles";
constexpr const char* slowest = "/slowest";

std::string joined_phase_names() {
  std::string names;
  for (int phase = 0; phase < Trace::phases; ++phase) {
    names += fmt::format("{}{}", phase > 0 ? "," : "", phase_name(static_cast<Phase>(phase)));
  }
  return names;
}

/// The shape of a dataset, which must have so many axes.
h5::Extent shape_of(const h5::File& file, const std::string& dataset, std::size_t axes) {
  h5::Extent shape = file.growing_shape(dataset);
  if (shape.size() == axes) return shape;
  throw Error(ExitCode::output, fmt::format("{}: {}: has an impossible shape", file.path(), dataset), Scope::this_rank,
              Cause::damage);
}

/// Columns of the file. With more than `most` a chunk would be larger than HDF5 allows.
std::uint64_t columns_of(const h5::File& file) {
  constexpr std::uint64_t most = 1 << 20;
  const std::uint64_t columns = shape_of(file, "/seconds", 3)[1];
  if (columns <= most) return columns;
  throw Error(ExitCode::output, fmt::format("{}: /seconds: has an impossible shape: {} columns", file.path(), columns),
              Scope::this_rank, Cause::damage);
}

template <class T>
std::vector<T> read_first(const h5::File& file, const std::string& dataset, std::uint64_t count) {
  std::vector<T> values(count);
  if (count > 0) file.read<T>(dataset, {0}, {count}, std::span<T>(values));
  return values;
}

/// Earlier programs call the phase "sync" "agree".
bool has_these_phases(const h5::File& file) {
  const std::string phases = file.read_text_attribute("/", "phases"), ours = joined_phase_names();
  const std::size_t at = phases.find(",agree,");
  return phases == ours || (at != std::string::npos && std::string(phases).replace(at, 7, ",sync,") == ours);
}

/// Number of elements up to the first that does not ascend: where a write has failed, zeros may follow.
std::uint64_t ascending(const std::vector<std::int64_t>& steps) {
  const auto end = std::ranges::adjacent_find(steps, std::greater_equal());
  return end == steps.end() ? steps.size() : end - steps.begin() + 1;
}

/// Number of rows that all the datasets have. Where an append has failed, some datasets may be longer than others.
std::uint64_t common_rows(const h5::File& file, std::uint64_t rows, std::initializer_list<const char*> datasets) {
  for (const char* dataset : datasets) rows = std::min(rows, file.growing_shape(dataset).at(0));
  return rows;
}

bool has_groups(const h5::File& file) { return file.exists(group_ranks); }

TraceWidth width_of(const h5::File& file) {
  const TraceWidth width{columns_of(file), has_groups(file) ? shape_of(file, group_ranks, 2)[1] : 0};
  if (width.groups <= width.columns) return width;
  throw Error(ExitCode::output, fmt::format("{}: {}: has an impossible shape", file.path(), group_ranks),
              Scope::this_rank, Cause::damage);
}

/// Reads the first `keep` rows of what the file has of groups.
void read_groups(const h5::File& file, std::uint64_t keep, std::uint64_t groups, TraceRows& rows) {
  rows.group_ranks.resize(keep * groups);
  rows.quantiles.resize(keep * groups * quantities * quantile_count);
  rows.slowest.resize(keep * groups * quantities);
  if (keep * groups == 0) return;
  file.read<std::int32_t>(group_ranks, {0, 0}, {keep, groups}, std::span<std::int32_t>(rows.group_ranks));
  file.read<float>(quantiles, {0, 0, 0, 0}, {keep, groups, quantities, quantile_count},
                   std::span<float>(rows.quantiles));
  file.read<std::int32_t>(slowest, {0, 0, 0}, {keep, groups, quantities}, std::span<std::int32_t>(rows.slowest));
}

TraceRows read_rows(const h5::File& file, std::int64_t first_step) {
  if (file.format() != trace_format || file.read_integer_attribute("/", "format_version") != file_version ||
      !has_these_phases(file) ||
      (has_groups(file) && file.read_text_attribute("/", "quantities") != quantity_names())) {
    throw Error(ExitCode::output, file.path() + ": written by another version of the program", Scope::this_rank,
                Cause::damage);
  }
  TraceRows rows;
  rows.step = read_first<std::int64_t>(file, "/step", shape_of(file, "/step", 1)[0]);
  rows.step.resize(ascending(rows.step));
  std::uint64_t keep = std::lower_bound(rows.step.begin(), rows.step.end(), first_step) - rows.step.begin();
  keep = common_rows(file, keep, {"/ranks", "/tokens", "/loss", "/seconds", "/communication"});
  if (file.exists(between)) keep = common_rows(file, keep, {between});
  if (has_groups(file)) keep = common_rows(file, keep, {group_ranks, quantiles, slowest});
  const auto [columns, groups] = width_of(file);
  rows.step.resize(keep);
  rows.ranks = read_first<std::int64_t>(file, "/ranks", keep);
  rows.tokens = read_first<double>(file, "/tokens", keep);
  rows.loss = read_first<double>(file, "/loss", keep);
  rows.seconds.resize(keep * columns * Trace::phases);
  rows.communication.resize(keep * columns);
  rows.communication_between.resize(keep * columns);
  if (keep > 0) {
    file.read<double>("/seconds", {0, 0, 0}, {keep, columns, Trace::phases}, std::span<double>(rows.seconds));
    file.read<double>("/communication", {0, 0}, {keep, columns}, std::span<double>(rows.communication));
    if (file.exists(between)) {
      file.read<double>(between, {0, 0}, {keep, columns}, std::span<double>(rows.communication_between));
    }
  }
  read_groups(file, keep, groups, rows);
  return rows;
}

/// The looks at the GPUs in steps < first_step; files of earlier programs have none.
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

void write_groups(h5::File& file, std::uint64_t stored, const TraceRows& rows) {
  const std::uint64_t n = rows.size(), groups = rows.group_ranks.size() / n;
  file.write<std::int32_t>(group_ranks, {stored, 0}, {n, groups}, rows.group_ranks);
  file.write<float>(quantiles, {stored, 0, 0, 0}, {n, groups, quantities, quantile_count}, rows.quantiles);
  file.write<std::int32_t>(slowest, {stored, 0, 0}, {n, groups, quantities}, rows.slowest);
}

/// Adds zeros to a file that has groups where these rows have none: what is not stored would look like damage.
void append_groups(h5::File& file, std::uint64_t stored, const TraceRows& rows) {
  if (!has_groups(file)) return;
  const std::uint64_t n = rows.size(), room = file.growing_shape(group_ranks)[1];
  file.resize(group_ranks, {stored + n, room});
  file.resize(quantiles, {stored + n, room, quantities, quantile_count});
  file.resize(slowest, {stored + n, room, quantities});
  if (n == 0) return;
  if (rows.group_ranks.empty()) {
    TraceRows zeros;
    zeros.step = rows.step;
    zeros.group_ranks.resize(n * room);
    zeros.quantiles.resize(n * room * quantities * quantile_count);
    zeros.slowest.resize(n * room * quantities);
    return write_groups(file, stored, zeros);
  }
  write_groups(file, stored, rows);
}

void create_groups(h5::File& file, std::uint64_t groups) {
  file.write_attribute("/", "quantities", quantity_names());
  file.create_growing_dataset<std::int32_t>(group_ranks, {0, groups}, columns_chunk);
  file.create_growing_dataset<float>(quantiles, {0, groups, quantities, quantile_count}, columns_chunk);
  file.create_growing_dataset<std::int32_t>(slowest, {0, groups, quantities}, columns_chunk);
}

}  // namespace

TraceSizes trace_sizes(const h5::File& file) {
  return {shape_of(file, "/seconds", 3)[0], width_of(file), shape_of(file, "/gpu_step", 1)[0]};
}

TraceValidations read_trace_validations(const h5::File& file) {
  TraceValidations validations;
  validations.step = read_first<std::int64_t>(file, "/validation_step", shape_of(file, "/validation_step", 1)[0]);
  validations.step.resize(common_rows(file, ascending(validations.step), {"/validation_loss"}));
  validations.loss = read_first<double>(file, "/validation_loss", validations.step.size());
  return validations;
}

/// Whole chunks, and, generously, what HDF5 adds.
std::uint64_t trace_bytes(std::uint64_t steps, const TraceWidth& width, const TraceValidations& validations,
                          const TraceGpus& gpus) {
  const std::uint64_t columns = width.columns;
  const std::uint64_t of_groups = (steps + columns_chunk) * width.groups * bytes_of_group;
  const std::uint64_t numbers = 4 * (steps + chunk) + (steps + columns_chunk) * columns * (Trace::phases + 2) +
                                2 * (validations.step.size() + chunk) + (gpus.step.size() + chunk) * (3 * columns + 1);
  return 65536 + numbers * sizeof(double) + of_groups + 64 * steps;
}

void append_gpus(h5::File& file, std::uint64_t stored, const TraceGpus& gpus) {
  const std::uint64_t n = gpus.step.size();
  append_columns(file, "/gpu_power", stored, n, gpus.power);
  append_columns(file, "/gpu_clock", stored, n, gpus.clock);
  append_columns(file, "/gpu_reasons", stored, n, gpus.reasons);
  file.flush();
  append_column(file, "/gpu_step", stored, gpus.step);
}

void append_rows(h5::File& file, std::uint64_t stored, const TraceRows& rows, std::uint64_t columns,
                 const TraceValidations& validations) {
  const std::uint64_t n = rows.size();
  append_column(file, "/ranks", stored, rows.ranks);
  append_column(file, "/tokens", stored, rows.tokens);
  append_column(file, "/loss", stored, rows.loss);
  file.resize("/seconds", {stored + n, file.growing_shape("/seconds")[1], Trace::phases});
  file.write<double>("/seconds", {stored, 0, 0}, {n, columns, Trace::phases}, rows.seconds);
  file.resize("/communication", {stored + n, file.growing_shape("/communication")[1]});
  file.write<double>("/communication", {stored, 0}, {n, columns}, rows.communication);
  file.resize(between, {stored + n, file.growing_shape(between)[1]});
  file.write<double>(between, {stored, 0}, {n, columns}, rows.communication_between);
  append_groups(file, stored, rows);
  append_column(file, "/validation_loss", 0, validations.loss);
  file.flush();
  append_column(file, "/step", stored, rows.step);
  append_column(file, "/validation_step", 0, validations.step);
}

EarlierTrace read_earlier_trace(const h5::File& file, long first_step) {
  EarlierTrace earlier{.begin = first_step};
  earlier.width = width_of(file);
  earlier.rows = read_rows(file, first_step);
  earlier.validations = read_trace_validations(file);
  earlier.validations.truncate(first_step + 1);
  earlier.gpus = read_gpus(file, first_step);
  // Files of earlier programs lack the attribute.
  if (file.has_attribute("/", "first_step")) {
    earlier.begin = static_cast<std::int64_t>(file.read_integer_attribute("/", "first_step"));
  } else if (earlier.rows.size() > 0) {
    earlier.begin = earlier.rows.step.front();
  }
  earlier.begin = std::min<std::int64_t>(earlier.begin, first_step);
  return earlier;
}

void create_trace(const std::string& path, const TraceWidth& width, const EarlierTrace& earlier,
                  const std::string& provenance) {
  const std::uint64_t columns = width.columns;
  reserve_space(path, provenance.size() + trace_bytes(earlier.rows.size(), width, earlier.validations, earlier.gpus),
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
  file.create_growing_dataset<double>(between, {0, columns}, columns_chunk);
  if (width.groups > 0) create_groups(file, width.groups);
  file.create_growing_dataset<std::int64_t>("/validation_step", {0}, chunk);
  file.create_growing_dataset<double>("/validation_loss", {0}, chunk);
  file.create_growing_dataset<std::int64_t>("/gpu_step", {0}, chunk);
  file.create_growing_dataset<double>("/gpu_power", {0, columns}, columns_chunk);
  file.create_growing_dataset<double>("/gpu_clock", {0, columns}, columns_chunk);
  file.create_growing_dataset<std::uint64_t>("/gpu_reasons", {0, columns}, columns_chunk);
  append_gpus(file, 0, earlier.gpus);
  append_rows(file, 0, earlier.rows, earlier.width.columns, earlier.validations);
  file.close();
}

bool is_trace(const std::string& path) {
  try {
    return h5::File::open(path, MPI_COMM_NULL, ExitCode::output).format() == trace_format;
  } catch (const Busy&) {
    return true;
  }
}

std::uint64_t traced_steps(const std::string& path) {
  std::uint64_t steps = 0;
  quietly([&] {
    if (!exists(path, ExitCode::output)) return;
    const h5::File file = h5::File::open(path, MPI_COMM_NULL, ExitCode::output);
    if (file.format() == trace_format) steps = shape_of(file, "/step", 1)[0];
  });
  return steps;
}

}  // namespace nanorun
