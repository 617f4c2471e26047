#pragma once
// How a run with checkpoint.restart = "auto" treats an earlier run of its name.

#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/run/checkpoint.hpp"

namespace nanorun {

enum class Earlier {
  none,      ///< there is none, or this run continues it from a checkpoint
  complete,  ///< all its steps are made and its summary is written: nothing is left to do
  begun,     ///< it was cut short before its first checkpoint, and begins again in its place
  ended,     ///< its checkpoints are gone, or it was another training and left none: it is kept under another name
};

/// For rank 0. Looks at `directory`, the run's own, and changes nothing. `found`: progress of the checkpoint that was
/// restored, if there is one. Throws Error(usage) where the run would overwrite another training: the earlier run is
/// finished, or has left a summary without a checkpoint, and the decks differ in keys that train or identify. If there
/// is a checkpoint, a larger train.steps alone does not count as a difference. An earlier run that was cut short before
/// its first checkpoint, or had no disk space for one, is no obstacle.
Earlier examine_earlier_run(const std::string& directory, const Config& config, const Checkpoints& checkpoints,
                            const std::optional<Progress>& found);

/// Throws Error(usage, all_ranks) where the restored checkpoint has made more steps than train.steps.
void require_steps_ahead(const Checkpoints& checkpoints, const Config& config);

/// Lines for the log on the differences between the deck and the deck of the restored checkpoint.
std::vector<std::string> changes_since(const Checkpoints& checkpoints, const Config& config);

}  // namespace nanorun
