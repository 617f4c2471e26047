#pragma once
// What a run says of its GPUs at its end: by rank, or on many ranks by group of ranks.

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nanorun {

class TraceColumns;

/// The GPU of a rank over all looks. Looks in which NVML gave no clock or no power do not count for this number.
struct GpuRecord {
  double least_clock = 0, mean_clock = 0;  ///< MHz
  double mean_power = 0, most_power = 0;   ///< watts
  std::map<std::string, long> throttled;   ///< by throttle_names(): number of looks that found it
};

/// The GPUs of a group of ranks over all looks.
struct GpuGroup {
  /// Ranks whose GPUs were throttled for one reason.
  struct Throttled {
    int ranks = 0;
    std::vector<std::pair<int, long>> most;  ///< the ranks with the most looks, and their looks; at most max_named
  };
  static constexpr std::size_t max_named = 4;

  int first_rank = 0, ranks = 0;  ///< the lowest rank, and number of ranks
  /// Over the ranks: the lowest and the mean clock that are known, the highest power that is known, and the sums of the
  /// looks. The mean power is 0 unless it is known of all ranks.
  GpuRecord all;
  int slowest = -1, fastest = -1;  ///< the ranks with the lowest and the highest mean clock; -1 where none is known
  double slowest_clock = 0, fastest_clock = 0;  ///< their mean clocks, MHz
  std::map<std::string, Throttled> throttled;
};

/// `records`: by rank. The result is by column, of which each is a group.
std::vector<GpuGroup> group_gpus(std::span<const GpuRecord> records, const TraceColumns& columns);

/// A line for the end of a run with clocks, power, and the first ranks whose GPUs were throttled; empty where no clock
/// is known. `records`: by rank.
std::string gpu_line(std::span<const GpuRecord> records);

}  // namespace nanorun
