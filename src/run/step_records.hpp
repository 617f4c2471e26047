#pragma once
// What a run records of its steps: progress lines, metrics.jsonl, validations, and the summary at the end.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/traffic.hpp"
#include "src/measure/energy.hpp"
#include "src/measure/gpu_monitor.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/time_left.hpp"
#include "src/model/flops.hpp"
#include "src/run/progress.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/summary.hpp"

namespace nanorun {

/// Processor time of this thread so far, in seconds.
double thread_seconds();

class StepRecords {
 public:
  /// If a look at the GPUs is due in a step, `gpus` must have looked before record_step().
  StepRecords(RunSetup& run, const GpuMonitor& gpus, EnergyMeter& energy);

  /// Keeps the metrics of the last step of `progress`, which took `seconds`, of which this thread had a processor for
  /// `processor_seconds`, and in which this rank has sent `sent`; write_step() writes them.
  void record_step(const Progress& progress, double seconds, double processor_seconds, double gradient_norm,
                   const LevelTraffic& sent);
  /// Whether a step, counted from 1, has a progress line however fast the steps are.
  bool due(long step) const {
    return step % config_.run.log_every == 0 || step == config_.train.steps || step == first_step_ + 1;
  }
  /// Keeps a line that follows the progress line of the step that was recorded; an empty one is left out.
  void record_line(std::string line) {
    if (!line.empty()) lines_.push_back(std::move(line));
  }
  /// Writes the step that was recorded, if there is one. Called when the device has other work.
  void write_step();

  /// Writes a validation after the steps of `progress`. It gave `loss`, in nats per token, and took `seconds`.
  void write_validation(const Progress& progress, double loss, double seconds);

  /// Collective. Writes summary.json. `stopped_by` is empty for a run that made all its steps. Throws Error(output).
  RunSummary write_summary(const Progress& progress, double train_loss, const std::string& stopped_by);

 private:
  std::optional<double> mfu(double flops, double seconds) const;
  LevelTraffic most_sent() const;

  RunSetup& run_;
  Context& context_;
  const Config& config_;
  const GpuMonitor& gpus_;
  EnergyMeter& energy_;
  const Flops flops_;
  long first_step_;
  std::optional<StepMetrics> unwritten_;  ///< the step that waits for write_step()
  std::vector<std::string> lines_;        ///< and what follows its line
  TimeLeft time_left_;
  std::optional<double> validation_loss_;
  double run_seconds_ = 0;         ///< time of the steps of this program run
  double run_thread_seconds_ = 0;  ///< processor time of this thread in these steps
  double run_flops_ = 0;           ///< FLOPs of these steps
  double run_6nd_ = 0;             ///< Flops::per_sequence_6nd() of these steps
  LevelTraffic sent_;              ///< what this rank has sent in these steps
  double time_to_first_step_ = 0;
  double last_line_ = 0;
};

}  // namespace nanorun
