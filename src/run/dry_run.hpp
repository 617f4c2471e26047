#pragma once
// `nanorun train --dry-run`: what a run would do.

#include "src/config/config.hpp"

namespace nanorun {

enum class PlanFormat { text, json };

/// Prints the resolved deck, what run_training() on `ranks` ranks would need, and lines that begin with "warning: "
/// where the data are missing or too short or the run could not begin with the weights of checkpoint.weights, all on
/// standard output: as text, or as one JSON object. Throws Error(usage) where check_config() refuses the deck, what
/// require_possible_paths() throws, and, after it has printed, the run's own Error where something stands in the way in
/// the run's directory. For one rank to call.
void plan_training(const Config& config, int ranks, PlanFormat format);

}  // namespace nanorun
