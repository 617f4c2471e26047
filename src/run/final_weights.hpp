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

/// Whether the weights of a checkpoint's model are formed with averages. `trained`: the checkpoint's deck.
bool has_averages(const CheckpointHeader& header, const Config& trained);

/// Collective. Makes the weights of a checkpoint, "/weights/<name>" of `table`, those of its model, in fp32. All ranks
/// give the same tensors, each its rows. Throws Error(checkpoint).
void blend_averages(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& trained,
                    const ParameterTable& table, const std::vector<Slab<float>>& weights);

/// Makes one parameter, which holds the weights of a checkpoint as ops read them, that of its model, by the ops of the
/// last validation. Throws Error(checkpoint).
template <class T>
void blend_averages(kernels::Stream stream, const std::string& path, const CheckpointHeader& header,
                    const Config& trained, const Parameter& parameter, std::span<T> weights);

}  // namespace nanorun
