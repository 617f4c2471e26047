#pragma once
// What a run leaves of its steps: progress lines, metrics.jsonl, validations, and the summary at the end.

#include <optional>
#include <string>
#include <utility>

#include "src/measure/gpu_monitor.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/time_left.hpp"
#include "src/run/report.hpp"
#include "src/run/run_setup.hpp"

namespace nanorun {

class RunLog {
 public:
  /// `gpus` has looked at the GPUs in the steps in which that is due.
  RunLog(RunSetup& run, const GpuMonitor& gpus);

  /// The step that led to `progress`, which took so many seconds. It waits for write_step().
  void record_step(const Progress& progress, double seconds, double gradient_norm);
  /// Writes what record_step() has left, once the device has other work.
  void write_step();

  /// A validation after the steps of `progress`, which took so many seconds.
  void write_validation(const Progress& progress, double loss, double seconds);

  /// Collective. Writes summary.json. `stopped_by` is empty for a run that made all its steps. Throws Error(output).
  RunSummary write_summary(const Progress& progress, double train_loss, const std::string& stopped_by);

 private:
  std::optional<double> mfu(double flops, double seconds) const;

  RunSetup& run_;
  Context& context_;
  const Config& config_;
  const GpuMonitor& gpus_;
  long first_step_;
  std::optional<std::pair<StepMetrics, StepReport>> unwritten_;  ///< of the step before
  TimeLeft time_left_;
  std::optional<double> validation_loss_;
  double run_seconds_ = 0;  ///< of the steps of this program run; the FLOPs too
  double run_flops_ = 0;
  double time_to_first_step_ = 0;
  double last_line_ = 0;
};

}  // namespace nanorun
