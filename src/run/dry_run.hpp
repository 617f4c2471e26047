#pragma once
// `nanorun train --dry-run`: what a run would do.

#include "src/config/config.hpp"

namespace nanorun {

/// Prints the resolved deck, what run_training() on `ranks` ranks would do, and lines that begin with "warning: " where
/// the data are missing or too short or the run could not begin with the weights of checkpoint.weights, all on standard
/// output. Throws Error(usage) where check_config() refuses the deck, and what require_possible_paths() throws. For one
/// rank to call.
void plan_training(const Config& config, int ranks);

}  // namespace nanorun
