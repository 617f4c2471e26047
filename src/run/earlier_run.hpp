#pragma once
// What a run makes of an earlier run of its name.

#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/run/checkpoint.hpp"

namespace nanorun {

/// How a run goes on with what lies in its directory.
struct Continuation {
  bool here = false;      ///< the run goes on there; if not, an earlier run that lies there is kept under another name
  bool complete = false;  ///< all steps are made and their summary is written: nothing is left to do
  bool again = false;     ///< the earlier run was cut short before its first checkpoint, and begins again in its place
};

/// For rank 0. `directory`: the run's, in which nothing changes. `found`: progress of the checkpoint that was restored,
/// if there is one. With checkpoint.restart = "auto" throws Error(usage) where the run would overwrite another
/// training: the earlier run is finished, or has left a summary without a checkpoint, and the decks differ in keys that
/// train or identify. A larger train.steps alone is no such difference where a checkpoint was left. A run that was cut
/// short before its first checkpoint, or had no disk space for it, is no obstacle.
Continuation examine_earlier_run(const std::string& directory, const Config& config, const Checkpoints& checkpoints,
                                 const std::optional<Progress>& found);

/// Throws Error(usage, all_ranks) where the restored checkpoint has made more steps than train.steps.
void require_steps_ahead(const Checkpoints& checkpoints, const Config& config);

/// Lines for the log on the differences between the deck and the deck of the restored checkpoint.
std::vector<std::string> changes_since(const Checkpoints& checkpoints, const Config& config);

}  // namespace nanorun
