#pragma once
// A training run: sets up data, model and optimizer from the deck and runs the step loop.

#include "src/config.hpp"
#include "src/context.hpp"
#include "src/error.hpp"

namespace nanorun {

/// Trains as the deck says. Returns ok, or requeue when it stopped early with a checkpoint. Throws Error.
ExitCode run_training(Context& context, const Config& config);

/// Prints the resolved deck, what run_training() on `ranks` ranks would do, and lines that begin with "warning: " where
/// the data are missing or too short, all on standard output. Throws Error(usage) where check_config() refuses the
/// deck, and what require_possible_paths() throws. For one rank to call.
void plan_training(const Config& config, int ranks);

}  // namespace nanorun
