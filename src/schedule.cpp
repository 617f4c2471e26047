#include "src/schedule.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/attention.hpp"

namespace nanorun {

double lr_factor(const TrainConfig& config, long step) {
  const double progress = static_cast<double>(step) / config.steps;
  if (progress < 1 - config.cooldown) return 1;
  const double left = (1 - progress) / config.cooldown;
  return left + (1 - left) * config.final_lr_factor;
}

double muon_momentum(const OptimizerConfig& config, long step) {
  const double progress = std::min(static_cast<double>(step) / config.muon_momentum_steps, 1.0);
  return (1 - progress) * config.muon_momentum_first + progress * config.muon_momentum_last;
}

int long_window(const WindowConfig& config, long step, long steps) {
  const double tokens =
      config.first + (config.last - config.first) * static_cast<double>(step) / static_cast<double>(steps);
  const double quanta = tokens / config.quantum;
  const double whole = config.rounding == Rounding::floor ? std::floor(quanta) : std::ceil(quanta);
  return config.quantum * std::max(1, static_cast<int>(whole));
}

int short_window(const WindowConfig& config, int long_window) {
  const int unit = config.kind == WindowKind::block ? kernels::attention_block : config.quantum;
  return unit * std::max(1, long_window / unit / 2);
}

bool is_long_layer(const WindowConfig& config, int layer) {
  return config.layers.size() == 1 ? config.layers[0] == 'L' : config.layers[layer] == 'L';
}

}  // namespace nanorun
