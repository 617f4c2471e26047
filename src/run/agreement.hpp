#pragma once
// What the ranks of a run tell each other in every step. MPI promises no order of sums. So numbers that must be summed
// in the order of the ranks travel side by side, one slot for each rank.

#include <functional>
#include <span>

#include "src/comm/comm.hpp"
#include "src/run/stop.hpp"

namespace nanorun {

/// A rank's reasons not to make the next step.
struct Requests {
  bool unread = false;  ///< the next step's tokens could not be read
  StopReason stop = StopReason::none;
};

/// Collective. Combines the requests of all ranks; of several reasons to stop the largest one counts. The same message
/// sums the numbers in `others` over the ranks, in place.
Requests agree(Comm& comm, const Requests& own, std::span<double> others);

/// Runs `work`, which reads files that all ranks must see alike. Where it throws an Error of this rank alone and there
/// are several ranks, rethrows it with the rank and its node at the front of the message.
void by_name(const Comm& comm, const std::function<void()>& work);

/// Results of a step on one rank.
struct StepResults {
  double loss = 0;          ///< mean over the rank's tokens
  double squares = 0;       ///< sum of squares of the rank's part of the gradients
  bool overflowed = false;  ///< a gradient or weight is not finite
};

/// Collective. Sums losses and squares over the ranks, in their order; `overflowed` tells whether any rank overflowed.
StepResults add_up(Comm& comm, const StepResults& own);

}  // namespace nanorun
