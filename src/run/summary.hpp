#pragma once
// The end of a run: summary.json, and the timing table and figures of merit in the log.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/traffic.hpp"
#include "src/data/shard_file.hpp"
#include "src/measure/energy.hpp"
#include "src/measure/gpu_records.hpp"
#include "src/measure/trace.hpp"
#include "src/run/progress.hpp"
#include "src/run/provenance.hpp"

namespace nanorun {

/// What a run has done when it ends.
struct RunSummary {
  Progress progress;
  long first_step = 0;  ///< updates that were made before this program run
  int ranks = 1;
  double train_loss = 0;
  std::optional<double> loss_weights;  ///< StepMetrics::loss_weights of the last step
  std::optional<double> validation_loss;
  double run_seconds = 0;         ///< time of the training steps of this program run
  std::uint64_t run_tokens = 0;   ///< tokens of these steps
  std::optional<double> mfu;      ///< MFU of these steps
  std::optional<double> mfu_6nd;  ///< the same with 6 N D in place of all FLOPs, see Flops::per_sequence_6nd()
  double peak_flops = 0;          ///< of all GPUs, per second, by which both divide; 0 where it is not known
  Energy energy;                  ///< of these steps without the first
  double time_to_first_step = 0;
  /// CPU build: part of run_seconds in which the thread of a rank that starts the ops had a processor, on the rank that
  /// had least. It waits for messages on the processor too.
  std::optional<double> processor_share;
  LevelTraffic sent;              ///< gradients and weights in these steps, each number on the rank that sent most
  std::uint64_t peak_memory = 0;  ///< host memory of the rank that used most, in bytes
  std::uint64_t peak_memory_total = 0;  ///< summed over the ranks
  /// Largest memory in use on any rank's device, by all processes, in bytes. It is measured after setup, after the
  /// first step, after each validation and at the end. 0 in the CPU build.
  std::uint64_t peak_device_memory = 0;
  std::vector<GpuRecord> gpus;       ///< GpuMonitor::records()
  std::vector<GpuGroup> gpu_groups;  ///< of `gpus`; empty where summary.json has each rank
  long gpu_looks = 0;
  std::string stopped_by;  ///< empty for a run that made all its steps
  Trace::Summary phases;
  TokenSum train_data, validation_data;  ///< tokens of the shards that were opened
  Provenance provenance;
};
/// The text of summary.json.
std::string summary_json(const RunSummary& summary);
/// The end of the log: timing table, GPUs, figures of merit ("FOM ..."), and a warning of long validations.
std::string closing_lines(const RunSummary& summary);

// What a summary.json says of the run that has written it. Its text may be anything, also no JSON.

/// Whether a run has written the text.
bool is_summary(const std::string& text);
/// The number of steps of a finished run; 0 if the run is not finished.
long finished_steps(const std::string& summary_json);
/// Whether the run was asked to stop before its first step and its first validation.
bool is_of_no_step(const std::string& summary_json);
/// Whether the run ended because the disk had no space left.
bool is_short_of_space(const std::string& summary_json);

}  // namespace nanorun
