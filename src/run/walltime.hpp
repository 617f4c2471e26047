#pragma once
// When a run stops because of stop.walltime_seconds. Between its parts (steps, validations) a run decides whether to go
// on or to stop. If it goes on, it must still be able to end before the limit at the next decision. So each decision
// estimates the time until the next one, and the time of a checkpoint there.

#include <cstdint>
#include <deque>

namespace nanorun {

/// Seconds that a run takes if it goes on now and stops at the next decision.
struct Foreseen {
  double step = 0;
  double validation = 0;
  double checkpoint = 0;
  double total() const { return step + validation + checkpoint; }
};

/// Seconds that must be left before the limit for a run to begin the parts `ahead`: 1.5 times their total, since times
/// vary, plus `ending`, the time in which program and launcher end; but at most twice their total.
double seconds_to_leave(const Foreseen& ahead, double ending);

/// Whether a run that has used `seconds` of its `limit` stops rather than begins the parts `ahead`. limit 0: there is
/// none.
bool must_stop(double limit, double seconds, const Foreseen& ahead, double ending);

/// Time and size of a file that was written as a trial.
struct Trial {
  double seconds = 0;
  std::uint64_t bytes = 0;
};

/// Estimates the seconds that a file of `bytes` takes from two trials, a small and a large one. The slope between them
/// is the time of a byte. If the large trial has at least `bytes`, its own time is the answer.
double seconds_of_file(std::uint64_t bytes, const Trial& small, const Trial& large);

/// Estimates how long the parts of a run take from the parts so far. `work`, such as FLOPs, compares steps with steps
/// and validations with validations: more work is expected to take proportionally longer, but less work is not expected
/// to be faster.
class PartTimes {
 public:
  void add_step(double seconds, double work);
  void add_validation(double seconds, double work) { validation_ = {seconds, work}; }
  void add_checkpoint(double seconds) { checkpoint_ = seconds; }

  /// Expects the time of the longest recent step; 0 before the first one.
  double step(double work) const;
  /// Expects the time of the last validation; before the first one, of the forward pass of a step with the same work.
  double validation(double work) const;
  /// Expects the time of the last checkpoint; before the first one, of the trial that add_checkpoint() was told of.
  double checkpoint() const { return checkpoint_; }

 private:
  struct Part {
    double seconds = 0, work = 0;
    double scaled(double to) const;
  };
  std::deque<Part> steps_;  ///< the recent ones
  Part validation_;
  double checkpoint_ = 0;
};

}  // namespace nanorun
