#pragma once
// What the ranks of a run tell each other in every step. MPI promises no order of sums. So numbers that must be summed
// in a fixed order travel side by side: inside a node one slot for each rank, between nodes one for each node.

#include <functional>
#include <span>

#include "src/comm/node_comms.hpp"
#include "src/run/stop.hpp"

namespace nanorun {

/// What a rank has seen that concerns the next step.
struct Requests {
  bool unread = false;  ///< the next step's tokens could not be read
  bool writes = false;  ///< a checkpoint is still being written
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

/// Collective. Sums losses and squares over the ranks of each node, then over the nodes, in their order; `overflowed`
/// tells whether any rank overflowed.
StepResults add_up(const NodeComms& comms, const StepResults& own);

}  // namespace nanorun
