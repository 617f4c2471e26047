#pragma once
// `nanorun train --dry-run`: what a run would do.

#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

enum class PlanFormat { text, json };

/// For what a dry run plans, and how it says it.
struct DryRun {
  int ranks = 1;
  std::optional<int> ranks_per_node;    ///< in place of comm.ranks_per_node
  std::optional<double> memory;         ///< bytes that a rank has, in place of those of this machine's device
  std::vector<std::string> machines{};  ///< paths of machine.json files
  PlanFormat format = PlanFormat::text;
};

/// Prints the resolved deck, what run_training() on so many ranks would need, and lines that begin with "warning: "
/// where the data are missing or too short, the run could not begin with the weights of checkpoint.weights, or it could
/// not use the GPU or driver of this machine, all on standard output: as text, or as one JSON object. Throws
/// Error(usage) where check_config() refuses the deck, what require_possible_paths() throws, where the machines tell no
/// step of the deck, and, after it has printed, Error(usage) where the memory of a rank does not suffice, or the run's
/// own Error where something stands in the way in the run's directory. For one rank to call.
void plan_training(const Config& config, const DryRun& dry_run);

}  // namespace nanorun
