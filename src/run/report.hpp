#pragma once
// What a run tells its user: progress lines, the timing table and figures of merit at the end, and summary.json. Rank 0
// alone writes.

#include <optional>
#include <string>
#include <vector>

#include "src/base/growing_file.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/data/data.hpp"
#include "src/measure/gpu_monitor.hpp"
#include "src/measure/trace.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/provenance.hpp"

namespace nanorun {

/// To standard output, at once. False where nobody reads it any more, as behind `| head`: nothing is wrong then, and
/// further texts can be left out. Throws Error(output) where it cannot be written for another reason.
bool write_output(const std::string& text);

/// Lines to standard output and to log.txt, and on a terminal a live line for the current step.
class Log {
 public:
  /// Silent where not `active`. Lines wait for open() before they go to a file too.
  explicit Log(bool active);

  /// Appends to `file` from here on, and what was said so far. Throws Error(output).
  void open(const std::string& file);

  void line(const std::string& text);
  /// To log.txt alone.
  void note(const std::string& text);
  /// Overwrites the live line; only on a terminal.
  void live(const std::string& text);

 private:
  bool active_;
  bool terminal_;
  bool live_shown_ = false;
  bool warned_ = false;
  bool unread_ = false;  ///< standard output takes no more, as has been said
  std::string waiting_;  ///< lines from before open()
  std::optional<GrowingFile> file_;
};

/// What the log begins with: program and start, model, output, device, and a warning where head.scale_g does not suit
/// the deck. `device_note` is a line of its own; none where it is empty.
std::vector<std::string> opening_lines(const Config& config, const Provenance& provenance, int ranks,
                                       const ParameterTable& table, const std::string& output,
                                       const std::string& device, const std::string& transport,
                                       const std::string& device_note);

/// One progress line: step, loss, window, step time, tokens per second, MFU where it is known, time left.
struct StepReport {
  long step = 0;
  long steps = 0;
  double loss = 0;
  bool weighted = false;  ///< the loss is a weighted sum over several targets
  int window = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu = {};  ///< model FLOPs utilisation
  double seconds_left = 0;
};
std::string format_step(const StepReport& report);
/// Of a value that is NaN or infinite.
std::string non_finite_text(const std::string& name, double value);

/// The line of a validation after `step` updates of `steps`, which took train_seconds.
std::string format_validation(long step, long steps, double loss, double train_seconds);

struct RunSummary {
  Progress progress;
  long first_step = 0;  ///< updates that were made before this program run
  int ranks = 1;
  double train_loss = 0;
  std::optional<double> loss_weights;  ///< as in StepMetrics, of the last step
  std::optional<double> validation_loss;
  double run_seconds = 0;  ///< of training steps in this program run
  std::uint64_t run_tokens = 0;
  std::optional<double> mfu;  ///< of the same steps
  double time_to_first_step = 0;
  std::uint64_t peak_memory = 0;        ///< bytes, of the rank that used most
  std::uint64_t peak_memory_total = 0;  ///< bytes, summed over ranks
  /// Bytes, the most that was seen in use on any rank's device, by all processes: looked at once set up, after the
  /// first step, after each validation and at the end. 0 in the CPU build.
  std::uint64_t peak_device_memory = 0;
  std::vector<GpuRecord> gpus;  ///< by rank; empty where nobody has looked at them
  long gpu_looks = 0;
  std::string stopped_by;  ///< empty for a run that made all its steps
  Trace::Summary phases;
  TokenSum train_data, validation_data;  ///< of the shards that were opened
  Provenance provenance;
};
std::string summary_json(const RunSummary& summary);
/// Steps of the finished run that a summary.json is of; 0 where the run is not finished or the text is no summary.
long finished_steps(const std::string& summary_json);
/// Whether a summary.json is of a run that was asked to stop before its first step and its first validation.
bool is_of_no_step(const std::string& summary_json);
/// Whether a summary.json is of a run that ended since the disk had no space left for it.
bool is_short_of_space(const std::string& summary_json);
std::string closing_lines(const RunSummary& summary);

/// Largest resident memory of this process so far, in bytes.
std::uint64_t peak_memory_bytes();

}  // namespace nanorun
