#include "src/optimizer/adam_options.hpp"

#include <cmath>

#include "src/config/schedule.hpp"

namespace nanorun {

kernels::AdamOptions adam_options(const Config& config, const Hyperparameters& hyper, long step) {
  const double lr = hyper.lr * lr_factor(config, step);
  const bool cautious = config.optimizer.decay_kind == DecayKind::cautious;
  const UpdateSteps& updates = hyper.updates;
  const bool late = updates.late(step);
  // One late update stands for so many of the period before it.
  const double updates_in_one =
      late ? static_cast<double>(updates.late_period) / static_cast<double>(updates.period) : 1;
  const auto beta = [&](double early) { return late ? std::pow(early, updates_in_one) : early; };
  const double decay = updates_in_one * hyper.decay;
  return {.lr = lr,
          .beta1 = beta(hyper.beta1),
          .beta2 = beta(hyper.beta2),
          .eps = config.optimizer.adam_eps,
          .t = updates.before(step + 1),
          .gradient_scale = 1.0 / config.train.sequences,
          .decay = cautious ? lr * lr * decay : lr * decay,
          .cautious = cautious,
          .epsilon_hat = config.optimizer.adam_epsilon_hat,
          .round_weights = hyper.master == StateFormat::bf16,
          .round_moments = hyper.moments == StateFormat::bf16,
          .clears_gradient = true};
}

}  // namespace nanorun
