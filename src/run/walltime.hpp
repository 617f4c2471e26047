#pragma once
// When a run stops because of stop.walltime_seconds. A run that goes on must still be able to end before the limit at
// its next decision. So each decision foresees how long the parts of the run up to the next one take, and the
// checkpoint that a stop there takes.

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

/// Seconds before the limit at which a run stops rather than begins with what is foreseen: 1.5 times what is foreseen,
/// since times vary, plus `ending`, in which program and launcher end; but at most twice what is foreseen.
double seconds_to_leave(const Foreseen& ahead, double ending);

/// Whether a run that has used `seconds` of its `limit` stops rather than goes on to what is foreseen. A limit of 0 is
/// none.
bool must_stop(double limit, double seconds, const Foreseen& ahead, double ending);

/// Time and size of a file that was written as a trial.
struct Trial {
  double seconds = 0;
  std::uint64_t bytes = 0;
};

/// Seconds of a file of `bytes`, from two trials of which the second is larger: what a byte takes is the slope between
/// them. A trial of at least as many bytes as the file is itself the answer.
double seconds_of_file(std::uint64_t bytes, const Trial& small, const Trial& large);

/// Foresees how long the parts of a run take, from those so far. `work`, such as FLOPs, compares steps, or validations,
/// with each other: more work takes proportionally longer, but less work is not expected to be faster.
class PartTimes {
 public:
  void add_step(double seconds, double work);
  void add_validation(double seconds, double work) { validation_ = {seconds, work}; }
  void add_checkpoint(double seconds) { checkpoint_ = seconds; }

  /// As long as the longest of the recent steps; 0 before the first one.
  double step(double work) const;
  /// As long as the last validation; before the first one, as the forward pass of a step with the same work.
  double validation(double work) const;
  /// As long as the last checkpoint, or the trial that add_checkpoint() was told of before the first one.
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
