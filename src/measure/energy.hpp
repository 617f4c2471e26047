#pragma once
// Energy of the training steps of a run.

#include <chrono>
#include <optional>

#include "src/comm/comm.hpp"
#include "src/measure/gpu_monitor.hpp"
#include "src/measure/rapl.hpp"

namespace nanorun {

/// Joules of all GPUs and of the processors of all nodes; absent if some of them do not tell.
struct Energy {
  std::optional<double> gpus, processors;
  bool gpus_counted = false;  ///< by the counters of the GPUs; else their mean power times the time
};

class EnergyMeter {
 public:
  /// Collective. `gpus` outlives it.
  EnergyMeter(Comm& comm, GpuMonitor& gpus, const std::string& powercap = "/sys/class/powercap");

  /// Counts from here on. Called before every step; does next to nothing where it counts already.
  void resume();
  /// Counts until here. The device has no work left.
  void pause();
  /// Collective. Pauses.
  Energy sum();

 private:
  using Clock = std::chrono::steady_clock;

  Comm& comm_;
  GpuMonitor& gpus_;
  std::optional<Rapl> rapl_;  ///< on the first rank of each node
  bool counts_ = false;
  bool gpu_known_ = true;
  Clock::time_point begin_, rapl_read_;
  double seconds_ = 0;
  double gpu_begin_ = 0, rapl_begin_ = 0;
  double gpu_ = 0, processors_ = 0;  ///< joules of this rank's GPU, and of its node's processors
};

}  // namespace nanorun
