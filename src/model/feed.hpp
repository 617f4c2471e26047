#pragma once
// All that a pass over a sequence reads beside the weights.

#include <span>

#include "kernels/ops.hpp"
#include "src/data/uploader.hpp"

namespace nanorun {

/// A sequence on the device, with the rotary embedding and the attention scales of the stage that it belongs to.
template <class T>
struct Feed {
  DeviceSequence sequence;
  ops::Rotary<T> rotary;         ///< angles of layers whose heads attend one by one
  ops::Rotary<T> paired_rotary;  ///< angles of layers whose heads attend in pairs; empty without model.paired_layers
  std::span<const kernels::acc_t<T>> attention_scales;  ///< factor on q kᵀ of each layer
};

}  // namespace nanorun
