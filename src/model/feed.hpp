#pragma once
// All that a pass over a sequence reads beside the weights.

#include "kernels/ops.hpp"
#include "src/data/uploader.hpp"

namespace nanorun {

/// A sequence on the device, with the rotary embedding and the attention scale of the stage that it belongs to.
template <class T>
struct Feed {
  DeviceSequence sequence;
  ops::Rotary<T> rotary;         ///< angles of layers whose heads attend one by one
  ops::Rotary<T> paired_rotary;  ///< angles of layers whose heads attend in pairs; empty without model.paired_layers
  kernels::acc_t<T> attention_scale = 0;
};

}  // namespace nanorun
