#pragma once
// checkpoint.weights: the checkpoint with whose weights a new run begins.

#include <span>
#include <string>

#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

struct FirstWeights {
  CheckpointHeader header;
  std::string difference;  ///< of the keys of [model], which does not change the tensors' shapes; empty: none
};

/// Collective. Reads the header of config.checkpoint.weights. Throws Error(checkpoint) on all ranks alike where it is
/// no checkpoint, or one of a model with other tensors.
FirstWeights find_first_weights(Comm& comm, const Config& config, const ParameterTable& table);

/// Throws Error(checkpoint, all_ranks) where the head and the embedding of the weights differ but are one parameter of
/// the run, whose first update would make the embedding a copy of the head. Every rank gives the same rows of both.
/// Collective where that is so.
void require_tied(Comm& comm, const Config& config, std::span<const float> head, std::span<const float> embedding);

/// For one rank, before a run: find_first_weights(), and verifies the weights. Throws Error(checkpoint) also where they
/// are damaged, or require_tied() would.
FirstWeights verify_first_weights(Comm& alone, const Config& config, const ParameterTable& table);

}  // namespace nanorun
