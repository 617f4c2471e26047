#pragma once
// Power, clock and throttle reasons of the GPUs of all ranks in some of the steps, so that a slow GPU is seen.

#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/measure/gpu_records.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/nvml.hpp"

namespace nanorun {

class GpuMonitor {
 public:
  /// `every`: steps from one look to the next; 0: never. bus_id: PCI bus id of this rank's GPU, see Nvml; empty on all
  /// ranks alike where there are no GPUs. Opens NVML on a thread of its own, so that nothing before the first look
  /// waits for it.
  GpuMonitor(Comm& comm, int every, const std::string& bus_id, const std::string& library = "libnvidia-ml.so.1");

  /// Whether the ranks look at their GPUs in the step that completes this number of updates.
  bool due(long updates) const { return every_ > 0 && updates % every_ == 0; }

  /// Joules that this rank's GPU has taken since its driver was loaded; absent where that is not known, or `every` is
  /// 0.
  std::optional<double> joules();
  /// Reads the state of this rank's GPU. Meant for the time in which the host waits for the device anyway.
  void look();
  /// Appends numbers that are to be summed over the ranks: the state of this rank's GPU, and zeros for other ranks.
  void append_to(std::vector<double>& values) const;
  /// Takes the sums of these numbers over the ranks, which hold the states of all GPUs.
  void take(std::span<const double> sums);
  /// Collective, after the first look. On rank 0 a line for the log if some GPUs cannot be looked at; else empty.
  std::string complaint();

  /// States of the GPUs in the last look, by rank.
  std::span<const GpuState> states() const { return states_; }
  /// Rank of the GPU with the lowest clock in the last look; absent where no clock is known.
  std::optional<int> slowest() const;
  /// Fills the members of a step's metrics that describe the last look.
  void describe(StepMetrics& metrics) const;
  /// Number of looks so far.
  long looks() const { return looks_; }
  /// By rank; empty before the first look, and where no GPU could be looked at.
  std::vector<GpuRecord> records() const;
  /// Watts of the GPUs of all ranks together, as means over the looks; absent where one of them is not known.
  std::optional<double> mean_power() const;

 private:
  /// This rank's GPU; null where NVML cannot be had. Waits for the thread that opens it.
  Nvml* nvml();

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
  std::vector<Sums> sums_;  ///< by rank; the means in `record` are sums until records() divides them
  long looks_ = 0;
};

}  // namespace nanorun
