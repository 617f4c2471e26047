#pragma once
// checkpoint.weights: the checkpoint with whose weights a new run begins.

#include <string>

#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

struct FirstWeights {
  CheckpointHeader header;
  std::string difference;  ///< keys of [model] that differ, though all shapes are the same; empty: none
};

/// Collective. Reads the header of the file config.checkpoint.weights. Throws Error(checkpoint) on all ranks alike
/// where the file is no checkpoint, or its model has other tensors.
FirstWeights find_first_weights(Comm& comm, const Config& config, const ParameterTable& table);

/// For one rank, without a run. Does what find_first_weights() does, and verifies the weights. Throws Error(checkpoint)
/// also where they are damaged, or where require_tied() (tied_start.hpp) would throw.
FirstWeights verify_first_weights(Comm& alone, const Config& config, const ParameterTable& table);

}  // namespace nanorun
