#pragma once
// What the ranks of a run tell each other in every step. MPI promises no order of sums: numbers that are to be summed
// in one order, that of the ranks, travel with a place for each rank.

#include <functional>
#include <span>

#include "src/comm/comm.hpp"
#include "src/run/stop.hpp"

namespace nanorun {

/// What should keep a run from its next step.
struct Requests {
  bool unread = false;  ///< the next step's tokens could not be read
  StopReason stop = StopReason::none;
};

/// Collective. What any rank requests; of several reasons to stop, the one with the largest value. Replaces `others` by
/// its sums over the ranks.
Requests agree(Comm& comm, const Requests& own, std::span<double> others);

/// Runs `work`, which reads what all ranks must see alike. Where it throws an Error of this rank, and there are
/// others, the message begins with the rank and its node.
void by_name(const Comm& comm, const std::function<void()>& work);

/// What a step has computed.
struct StepResults {
  double loss = 0;          ///< mean over the rank's tokens
  double squares = 0;       ///< of the rank's part of the gradients
  bool overflowed = false;  ///< gradients or weights
};

/// Collective. The sums over the ranks, in their order; whether any of them overflowed.
StepResults add_up(Comm& comm, const StepResults& own);

}  // namespace nanorun
