#pragma once
// What the columns of trace.h5 are. On few ranks each has one. On many ranks those of a node, or of several nodes, form
// a group, which has one column for its mean, its quantiles and its slowest ranks. So a step takes no more room than
// that of most_groups columns, however many ranks there are.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/comm/node_layout.hpp"
#include "src/config/config.hpp"
#include "src/measure/nvml.hpp"
#include "src/measure/trace.hpp"
#include "src/measure/trace_rows.hpp"

namespace nanorun {

/// Numbers that a rank measures of a step: the seconds of each phase, of communication, and of its part between nodes.
inline constexpr std::size_t measured_numbers = Trace::phases + 2;
/// Numbers of which a group has quantiles: these, and sums of phases.
inline constexpr std::size_t quantities = measured_numbers + 3;
inline constexpr std::size_t quantile_count = 5;
/// What a group has of a step: means of the measured numbers, then by quantity the quantiles, then by quantity the
/// slowest rank.
inline constexpr std::size_t group_numbers = measured_numbers + quantities * (quantile_count + 1);

/// Bytes that a group has in a row beyond those of a rank's column.
inline constexpr std::size_t bytes_of_group =
    sizeof(std::int32_t) + quantities * (quantile_count * sizeof(float) + sizeof(std::int32_t));

/// Names of the quantities, separated by commas: the phases, then
/// communication          transfers of gradients and weights
/// communication_between  those between nodes
/// step                   all phases but validation and checkpoint
/// work                   step without the phases in which a rank waits for others: reduce_gradients, gather_weights
///                        and sync
/// computing              work without muon and adam
std::string quantity_names();

/// Seconds of a step in which a rank does not wait for others, the quantity `work`. `phases`: seconds of each phase.
double work_seconds(std::span<const double, Trace::phases> phases);

class TraceColumns {
 public:
  /// TraceRanks::automatic gives each of so many ranks a column of its own.
  static constexpr int most_single_ranks = 256;
  /// Where there are more nodes, consecutive ones share a group, as evenly as can be.
  static constexpr int most_groups = 64;

  TraceColumns(TraceRanks choice, const NodeLayout& layout);

  /// Whether columns are groups of ranks.
  bool grouped() const { return grouped_; }
  int count() const { return static_cast<int>(ranks_of_.size()); }
  /// count(), or 0 where each column is a rank.
  int groups() const { return grouped_ ? count() : 0; }
  int column_of(int rank) const { return column_of_[rank]; }
  /// Ascending.
  const std::vector<int>& ranks_of(int column) const { return ranks_of_[column]; }

  /// Adds the row of a step to `rows`. `numbers`: of each column, measured_numbers or, of a group, group_numbers.
  void add_row(TraceRows& rows, std::span<const double* const> numbers) const;
  /// The states of GPUs by rank as those of columns: of a group the mean power, the lowest clock and all reasons, where
  /// 0 is no number.
  std::vector<GpuState> of_columns(std::span<const GpuState> states) const;

 private:
  bool grouped_;
  std::vector<int> column_of_;
  std::vector<std::vector<int>> ranks_of_;
};

/// The group_numbers of a step. `measured`: the measured_numbers of each of the ranks. A quantile between two ranks is
/// interpolated linearly. Of equally slow ranks the first one counts.
std::array<double, group_numbers> summarise_group(std::span<const double* const> measured, std::span<const int> ranks);

}  // namespace nanorun
