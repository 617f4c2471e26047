#pragma once
// Learning rate, momentum and window as pure functions of the step (counted from 0).

#include "src/config.hpp"

namespace nanorun {

/// Factor of every learning rate: 1, then linear to final_lr_factor over the last `cooldown` of the steps.
double lr_factor(const TrainConfig& config, long step);

/// Muon's momentum: linear from first to last over the first muon_momentum_steps steps.
double muon_momentum(const OptimizerConfig& config, long step);

/// Tokens of the attention window of long layers at a step out of `steps`.
int long_window(const WindowConfig& config, long step, long steps);

/// Tokens of the window of short layers: half the blocks (or tokens) of the long window, at least one quantum.
int short_window(const WindowConfig& config, int long_window);

/// Whether layer uses the long window.
bool is_long_layer(const WindowConfig& config, int layer);

}  // namespace nanorun
