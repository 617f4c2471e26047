#pragma once
// Adam's options from the deck.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

/// Options of Adam's update at the end of a step, for tensors with these hyperparameters. The update clears gradients.
kernels::AdamOptions adam_options(const Config& config, const Hyperparameters& hyper, long step);

}  // namespace nanorun
