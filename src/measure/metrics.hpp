#pragma once
// The figures of steps and validations, and metrics.jsonl (docs/file_formats.md), which has a line of JSON for each,
// for programs that follow a run or compare runs.

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/growing_file.hpp"

namespace nanorun {

/// A step, for the log and metrics.jsonl.
struct StepMetrics {
  long step = 0;  ///< updates so far, this one included
  double loss = 0;
  /// Sum of the targets' weights where the loss is a weighted sum over several targets; else absent.
  std::optional<double> loss_weights = {};
  double seconds = 0;  ///< time of this step
  double tokens_per_second = 0;
  std::uint64_t tokens = 0;                ///< tokens of all steps so far
  double train_seconds = 0;                ///< time of all steps so far
  std::optional<double> mfu = {};          ///< model FLOPs utilisation; absent where the devices' peak is not known
  double lr_factor = 0;                    ///< schedule's factor on every learning rate
  double momentum = 0;                     ///< Muon's
  int window = 0;                          ///< long attention window, in tokens
  double gradient_norm = 0;                ///< l2 norm of the gradient of the step's mean loss
  std::optional<double> clip_factor = {};  ///< on the gradients, 1 or less; absent where the deck does not clip
  /// Largest memory in use on the device of rank 0 that was seen so far, by all processes, in bytes; 0 in the CPU
  /// build.
  std::uint64_t device_memory = 0;
  /// In steps that look at the GPUs, if a clock is known: the rank whose GPU has the lowest clock, that clock in MHz,
  /// its power in watts, and the number of ranks whose GPUs are throttled.
  std::optional<int> gpu_rank = {};
  double gpu_clock = 0;
  double gpu_power = 0;
  int gpus_throttled = 0;
};

/// A validation, for metrics.jsonl.
struct ValidationMetrics {
  long step = 0;  ///< updates before the validation
  double loss = 0;
  double seconds = 0;        ///< time of the validation itself
  std::uint64_t tokens = 0;  ///< tokens of all steps before it
  double train_seconds = 0;  ///< time of all steps before it
};

/// Whether nanorun has written the file, which may lack the end of its last line. Throws Error(output) that names the
/// first line that is none of the metrics.
bool is_metrics(const std::string& path);

/// What a metrics.jsonl tells of its run.
struct RecordedRun {
  long step = 0;                             ///< of the last line
  std::optional<std::uint64_t> deck_mark{};  ///< Metrics::open() was given; absent in files of earlier programs
};
/// Of no step where there is no file of nanorun's that can be read.
RecordedRun recorded_run(const std::string& path);

/// What Metrics::open() would warn of in a file of nanorun's: steps that it lacks. Empty where it lacks none, or is not
/// there. Throws Error(output).
std::string metrics_warning(const std::string& path, long first_step);

/// For rank 0; does nothing elsewhere. Where the file can no longer be written, for example on a full disk, a warning
/// says so and the metrics end, not the run.
class Metrics {
 public:
  /// Does nothing unless `active`.
  explicit Metrics(bool active) : active_(active) {}

  /// A run from step 0 starts a new file. A resumed run keeps the lines of steps up to first_step, and warns if the
  /// last of these lines are missing. Both move a file that nanorun has not written, or that is damaged, out of the
  /// way. `deck_mark`, below 2^53, tells which deck has made a new file; its first line holds it. Throws Error(output)
  /// where the file cannot be made.
  void open(const std::string& path, long first_step, std::uint64_t deck_mark = 0);

  /// Adds a line, which flush() writes. If a resumed run has kept a line of the same validation, the new line replaces
  /// it.
  void add(const StepMetrics& step);
  void add(const ValidationMetrics& validation);
  void flush();

 private:
  template <class Line>
  void append(const Line& line);
  template <class Write>
  void attempt(Write&& write);
  void shorten(std::uint64_t bytes);

  bool active_;
  std::string path_;
  std::uint64_t deck_mark_ = 0;
  std::optional<GrowingFile> file_;
  std::uint64_t size_ = 0;  ///< bytes of whole lines in the file
  std::string waiting_;
  long kept_step_ = -1;           ///< step of the validation with which the kept lines end; -1: they end with none
  std::uint64_t kept_begin_ = 0;  ///< where its line begins in the file
};

}  // namespace nanorun
