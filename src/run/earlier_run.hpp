#pragma once
// What becomes of an earlier run of the same name, for checkpoint.restart = "auto".

#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/run/checkpoint.hpp"

namespace nanorun {

enum class Earlier {
  none,      ///< there is none, or it has left the checkpoint that was restored
  complete,  ///< all its steps are made and its summary is written: nothing is left to do
  begun,     ///< it was cut short before its first checkpoint, and begins again in its place
  ended,     ///< its checkpoints are gone, or it was another training and left none: it is kept under another name
};

/// For rank 0. `found` is the progress of the checkpoint that was restored, if there is one. Throws Error(usage) where
/// the run would write over, or seem to be, another training: the earlier run is finished or has left a summary without
/// a checkpoint, and the decks differ in keys that train or identify. One that was cut short before its first
/// checkpoint, or found no space for it on the disk, is no obstacle. More train.steps alone extend a run that has left
/// a checkpoint. `directory` is the run's; nothing in it changes.
Earlier examine_earlier_run(const std::string& directory, const Config& config, const Checkpoints& checkpoints,
                            const std::optional<Progress>& found);

/// Throws Error(usage, all_ranks) where the restored checkpoint has made more steps than train.steps.
void require_steps_ahead(const Checkpoints& checkpoints, const Config& config);

/// Lines for the log on how the deck differs from that of the restored checkpoint.
std::vector<std::string> changes_since(const Checkpoints& checkpoints, const Config& config);

}  // namespace nanorun
