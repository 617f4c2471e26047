#pragma once
// A training run: sets up data, model and optimizer from the deck and runs the step loop.

#include "src/config.hpp"
#include "src/context.hpp"
#include "src/error.hpp"

namespace nanorun {

/// Trains as the deck says, or with dry_run prints what it would do, and warnings where the data are missing or too
/// short. Returns ok, or requeue when it stopped early with a checkpoint. Throws Error.
ExitCode run_training(Context& context, const Config& config, bool dry_run);

}  // namespace nanorun
