#include "src/optimizer/adam_options.hpp"

#include "src/config/schedule.hpp"

namespace nanorun {

kernels::AdamOptions adam_options(const Config& config, const Hyperparameters& hyper, long step) {
  const double lr = hyper.lr * lr_factor(config, step);
  const bool cautious = config.optimizer.decay_kind == DecayKind::cautious;
  return {.lr = lr,
          .beta1 = hyper.beta1,
          .beta2 = hyper.beta2,
          .eps = config.optimizer.adam_eps,
          .t = (step + 1) / config.optimizer.adam_period,
          .gradient_scale = 1.0 / config.train.sequences,
          .decay = cautious ? lr * lr * hyper.decay : lr * hyper.decay,
          .cautious = cautious,
          .epsilon_hat = config.optimizer.adam_epsilon_hat,
          .round_weights = hyper.master == StateFormat::bf16,
          .round_moments = hyper.moments == StateFormat::bf16,
          .clears_gradient = true};
}

}  // namespace nanorun
