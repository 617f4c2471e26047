#pragma once
// LM head and embedding where a run begins with the weights of a file, or goes on from a checkpoint: a deck may tie
// them (model.tied_head) that have parted there, or part them that are one parameter there.

#include <functional>
#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

/// Collective where the update of `step`, the run's next one, is of both together; else does nothing. Throws
/// Error(checkpoint, all_ranks) if they differ: that update would make the embedding a copy of the LM head. `file`:
/// from which they are. `slabs` hold /weights/head and /weights/embedding, of each rank the same rows [rows, d].
void require_tied(Comm& comm, const Config& config, const std::string& file, long step,
                  const std::vector<Slab<float>>& slabs);

/// For one rank, without a run. Throws where require_tied() would. `read` fills a slab of a whole tensor.
void verify_tied(Comm& alone, const Config& config, const ParameterTable& table, const std::string& file, long step,
                 const std::function<void(const Slab<float>&)>& read);

/// Whether they are one parameter up to this checkpoint, by its deck, and none from there on, by the run's. The last
/// tied update has then not given the embedding the LM head's state.
bool parts_lm_head(const CheckpointHeader& header, const Config& config);

/// Gives the embedding the LM head's moments of Adam, which updates both. Each rank has the same rows of them.
void hand_over_state(const std::vector<Slab<float>>& slabs);

}  // namespace nanorun
