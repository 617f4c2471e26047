#pragma once
// Power, clock and throttle reasons of the GPUs of all ranks in some of the steps, so that a slow GPU is seen.

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/nvml.hpp"

namespace nanorun {

/// One rank's GPU over all looks. Of clock and power those that NVML has said.
struct GpuRecord {
  double least_clock = 0, mean_clock = 0;  ///< MHz
  double mean_power = 0, most_power = 0;   ///< watts
  std::map<std::string, long> throttled;   ///< looks that found the clock held down, by throttle_names()
};

class GpuMonitor {
 public:
  /// `every`: steps from one look to the next; 0: never. bus_id: of this rank's GPU, see Nvml; empty: it has none, and
  /// there is nothing to look at, which must be so on all ranks alike. Opens NVML on a thread of its own, beside
  /// whatever comes before the first look.
  GpuMonitor(Comm& comm, int every, const std::string& bus_id, const std::string& library = "libnvidia-ml.so.1");

  /// Whether the ranks look at their GPUs in the step that completes this number of updates.
  bool due(long updates) const { return every_ > 0 && updates % every_ == 0; }

  /// Asks for this rank's GPU. Meant for the time in which the host waits for it anyway.
  void look();
  /// Appends numbers to be summed over the ranks: what this rank has seen, and zeros in place of the others.
  void append_to(std::vector<double>& values) const;
  /// Takes the sums of what append_to() has appended on each rank.
  void take(std::span<const double> sums);
  /// Collective. Once after the first look, on rank 0: a line for the log where GPUs cannot be looked at, else empty.
  std::string complaint();

  /// By rank, of the last look.
  std::span<const GpuState> states() const { return states_; }
  /// Rank with the lowest clock in the last look, if any is known.
  std::optional<int> slowest() const;
  /// Fills what the metrics of a step say of the last look.
  void describe(StepMetrics& metrics) const;
  long looks() const { return looks_; }
  /// By rank; empty before the first look, and where no GPU could be looked at.
  std::vector<GpuRecord> records() const;

 private:
  struct Sums {
    GpuRecord record;
    long clocks = 0, powers = 0;  ///< looks that know them
  };

  Comm& comm_;
  int every_;
  std::future<std::unique_ptr<Nvml>> opening_;
  std::unique_ptr<Nvml> nvml_;
  std::string failure_;
  GpuState own_;
  std::vector<GpuState> states_;
  std::vector<Sums> sums_;  ///< by rank; the means are sums
  long looks_ = 0;
};

/// A line for the end of a run: the clocks, the power, and which ranks' GPUs were throttled; empty where no clock is
/// known.
std::string gpu_line(std::span<const GpuRecord> records);

}  // namespace nanorun
