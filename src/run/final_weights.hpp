#pragma once
// The weights of a finished run's model, where its deck has [[average]]: its checkpoint holds the weights with which
// training would go on, and the averages (src/optimizer/averages.hpp).

#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

/// Collective. Reads weights of a checkpoint, "/weights/<name>" of `table`, in fp32, and verifies their checksums. If
/// the run of its deck `trained` is finished, they are those of its model: averaged tensors have the numbers with which
/// the last validation of this build computed, in bf16 where it kept them so. All ranks give the same tensors, each its
/// rows, with memory. Throws Error(checkpoint).
void read_final_weights(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& trained,
                        const ParameterTable& table, const std::vector<Slab<float>>& weights);

}  // namespace nanorun
