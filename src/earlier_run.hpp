#pragma once
// What becomes of an earlier run of the same name, for checkpoint.restart = "auto".

#include <optional>

#include "src/checkpoint.hpp"
#include "src/config.hpp"
#include "src/run_folder.hpp"

namespace nanorun {

/// For rank 0. Whether the earlier run that lies in the directory is this one and has nothing left to do: all its steps
/// are made and its summary is written. `found` is the progress of the checkpoint that was restored, if there is one.
/// Throws Error(usage) where the run would write over, or seem to be, another training: the earlier run is finished or
/// has left figures without a checkpoint, and the decks differ in keys that train or identify. More train.steps alone
/// extend a run that has left a checkpoint.
bool is_complete(const RunFolder& folder, const Config& config, const Checkpoints& checkpoints,
                 const std::optional<Progress>& found);

}  // namespace nanorun
