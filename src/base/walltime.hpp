#pragma once
// When a run stops because of stop.walltime_seconds. A run that goes on must be able to end before the limit from
// wherever it decides next. So each decision foresees, from how long such things took before, what comes until then,
// and the checkpoint that a stop takes there.

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

/// Seconds before the limit at which a run stops rather than begins with what is foreseen: half as much again, since
/// times vary, and those in which program and launcher end, but never more than twice what is foreseen.
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

/// How long the parts of a run take, from those that this rank has made. `work` compares parts of one kind, such as
/// FLOPs; a part with more work takes longer in proportion, one with less is not counted on to be faster.
class PartTimes {
 public:
  void add_step(double seconds, double work);
  void add_validation(double seconds, double work) { validation_ = {seconds, work}; }
  void add_checkpoint(double seconds) { checkpoint_ = seconds; }

  /// The longest of the recent steps; 0 where nothing is known.
  double step(double work) const;
  /// The last validation. Before the first one, the forward pass of a step with the same work.
  double validation(double work) const;
  /// The last checkpoint, or before the first one what add_checkpoint() was told of the trial.
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
