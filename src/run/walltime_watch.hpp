#pragma once
// How a run keeps to stop.walltime_seconds: it measures its steps, validations and checkpoints, and stops early enough
// for the next ones (src/run/walltime.hpp has the arithmetic).

#include <string>

#include "src/model/flops.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/walltime.hpp"

namespace nanorun {

class WalltimeWatch {
 public:
  /// Expects the first checkpoint to take run.checkpoint_seconds.
  explicit WalltimeWatch(const RunSetup& run);

  /// The seconds that the step, or the validation before it, took.
  void add_step(long step, double seconds);
  void add_validation(long step, double seconds);
  void add_checkpoint(double seconds);
  /// A checkpoint is being written in the background, for which a stop would wait; it took so many seconds.
  void begin_background() { writes_ = true; }
  void end_background(double seconds);

  // This rank's view. A program run always makes its first step, so that a chain of jobs advances.

  /// Whether the run stops now, after `done` updates, rather than make the next step.
  bool stops_before_step(long done) const;
  /// Whether the run stops at the end of the step that is under way, which makes update number `done` and began
  /// `step_begin` seconds after the program's start.
  bool stops_after_step(long done, double step_begin) const;

  /// A line for the log of a run that has stopped after `done` updates.
  std::string line(long done) const;

 private:
  double step_work(long step) const;
  double validation_work(long step) const;
  bool may_stop(long done) const;
  Foreseen next_step(long done, double least) const;
  bool must_stop(double at, const Foreseen& ahead) const;
  double checkpoint() const;

  const RunSetup& run_;
  const Config& config_;
  const Flops flops_;
  PartTimes times_;
  bool writes_ = false;    ///< in the background
  double background_ = 0;  ///< seconds of the last checkpoint that was written so
};

}  // namespace nanorun
