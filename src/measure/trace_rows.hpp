#pragma once
// What trace.h5 holds of the steps, in memory: rows of steps, looks at the GPUs, validations.

#include <cstdint>
#include <vector>

namespace nanorun {

/// Rows of steps, with columns for ranks or groups of ranks (src/measure/trace_columns.hpp); between two writes each
/// rank has its own column alone.
struct TraceRows {
  std::vector<std::int64_t> step, ranks;
  std::vector<double> tokens, loss;
  std::vector<double> seconds;                ///< [steps, columns, phases]
  std::vector<double> communication;          ///< [steps, columns], seconds
  std::vector<double> communication_between;  ///< [steps, columns], seconds: the part between nodes

  // Where columns are groups; else empty, or zero in files that hold rows with groups too.
  std::vector<std::int32_t> group_ranks;  ///< [steps, groups], number of ranks in the group
  std::vector<float> quantiles;           ///< [steps, groups, quantities, quantile_count], seconds
  std::vector<std::int32_t> slowest;      ///< [steps, groups, quantities], ranks

  std::size_t size() const { return step.size(); }
  void reserve(std::size_t steps);
  void clear();
  /// Adds rows, which have as many columns.
  void append(const TraceRows& rows);
  /// Removes the first `steps` rows.
  void drop(std::size_t steps);
};

/// Looks at the GPUs, in ascending order of their steps.
struct TraceGpus {
  std::vector<std::int64_t> step;
  std::vector<double> power, clock;    ///< [looks, columns], watts and MHz
  std::vector<std::uint64_t> reasons;  ///< [looks, columns]

  /// Removes the first `looks` looks.
  void drop(std::size_t looks);
};

/// Validation losses, in ascending order of their steps.
struct TraceValidations {
  std::vector<std::int64_t> step;
  std::vector<double> loss;

  /// Removes the validations of steps >= first.
  void truncate(std::int64_t first);
  /// Adds later validations. They replace validations of steps >= their first step.
  void append(const TraceValidations& later);
};

}  // namespace nanorun
