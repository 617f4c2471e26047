#pragma once
// `nanorun train --dry-run`: what a run would do.

#include "src/config/config.hpp"

namespace nanorun {

enum class PlanFormat { text, json };

/// For one rank. Prints the resolved deck and what run_training() on `ranks` ranks would need to standard output, as
/// text or as one JSON object. Lines that begin with "warning: " say that data are missing or too short, or that the
/// run could not begin with the weights of checkpoint.weights. Throws Error(usage) where check_config() refuses the
/// deck, and what require_possible_paths() throws.
void plan_training(const Config& config, int ranks, PlanFormat format);

}  // namespace nanorun
