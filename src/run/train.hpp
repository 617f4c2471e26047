#pragma once
// A training run: sets up data, model and optimizer from the deck and runs the step loop.

#include "src/base/error.hpp"
#include "src/comm/context.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// Trains as the deck says. Returns ok, or requeue when it stopped early with a checkpoint. Throws Error.
ExitCode run_training(Context& context, const Config& config);

}  // namespace nanorun
