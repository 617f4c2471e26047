#pragma once
// Refuses a run that the memory of its ranks does not hold, before it takes any.

#include <cstdint>
#include <string>

#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/run/training_plan.hpp"

namespace nanorun {

/// Why `available` bytes on a rank do not hold the plan: what takes most, and the keys that make it smaller. Empty
/// where they do, and where they are 0, which means unknown.
std::string memory_shortage(const Config& config, const MemoryPlan& memory, double available);

/// Collective. `available`: bytes of this rank's device, 0 where unknown; the least of all ranks counts. Throws
/// Error(usage, all_ranks) where they do not hold what a rank needs.
void require_memory(Comm& comm, const Config& config, std::uint64_t available);

}  // namespace nanorun
