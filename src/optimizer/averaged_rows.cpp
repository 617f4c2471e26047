#include "src/optimizer/averaged_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/config/config_check.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

namespace {

bool covers(const AverageConfig& average, const std::string& name) {
  return std::ranges::any_of(average.tensors, [&](const std::string& pattern) { return matches(pattern, name); });
}

/// The name by which an average covers a tensor.
std::string covered_name(const Config& config, const Parameter& tensor) {
  const bool tied = config.model.tied_head && config.train.untie_step == 0;
  return tied && tensor.name == "embedding" ? "head" : tensor.name;
}

/// Names of the matrices of a tensor that has several: of queries, keys and values.
std::string matrix_name(const std::string& tensor, int matrix) {
  constexpr const char* ends[] = {".q", ".k", ".v"};
  return tensor + ends[matrix];
}

}  // namespace

std::vector<AveragedRows> averaged_rows(const Config& config, const AverageConfig& average, const OwnedRows& tensor) {
  const Parameter& parameter = *tensor.parameter;
  const std::string name = covered_name(config, parameter);
  if (parameter.group == Group::fixed) return {};
  if (covers(average, name)) return {{parameter.name, tensor, 0}};
  std::vector<AveragedRows> covered;
  const auto rows = static_cast<std::uint64_t>(parameter.rows);
  for (int matrix = 0; parameter.matrices > 1 && matrix < parameter.matrices; ++matrix) {
    if (!covers(average, matrix_name(name, matrix))) continue;
    const std::uint64_t begin = matrix * rows, end = begin + rows, first = std::max(begin, tensor.first_row),
                        last = std::max(first, std::min(end, tensor.first_row + tensor.row_count));
    OwnedRows part = tensor;
    part.total_rows = rows;
    part.first_row = first < last ? first - begin : 0;
    part.row_count = last - first;
    const std::size_t skipped = first < last ? (first - tensor.first_row) * tensor.cols : 0;
    part.offset += skipped;
    covered.push_back({matrix_name(parameter.name, matrix), part, skipped});
  }
  return covered;
}

std::vector<AveragedRows> averaged_rows(const Config& config, const AverageConfig& average, const Parameter& tensor) {
  const auto cols = static_cast<std::uint64_t>(tensor.shared_cols());
  const std::uint64_t rows = tensor.size() / cols;
  return averaged_rows(config, average, OwnedRows{&tensor, rows, cols, 0, rows, tensor.offset});
}

std::string average_dataset(std::size_t row, const std::string& name) {
  return fmt::format("/average/{}/{}", row, name);
}

std::vector<std::string> average_warnings(const Config& config, const ParameterTable& table) {
  std::vector<std::string> warnings;
  for (std::size_t row = 0; row < config.average.size(); ++row) {
    for (const std::string& pattern : config.average[row].tensors) {
      AverageConfig alone = config.average[row];
      alone.tensors = {pattern};
      const auto named = [&](const Parameter& tensor) { return !averaged_rows(config, alone, tensor).empty(); };
      if (std::ranges::any_of(table.parameters(), named)) continue;
      const std::string key = fmt::format("average.{}.tensors", row);
      warnings.push_back(fmt::format("warning: {}{}: no trained tensor of the model is called {}",
                                     where_set(config, {key}), key, pattern));
    }
  }
  return warnings;
}

}  // namespace nanorun
