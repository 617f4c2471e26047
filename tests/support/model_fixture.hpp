#pragma once
// A small model in double with a sequence of tokens, and its gradients against finite differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "src/config/schedule.hpp"
#include "tests/support/learner.hpp"

namespace nanorun {

inline constexpr kernels::Token end_of_text = 199;

inline Config small_config() {
  Config config;
  config.model.vocabulary = 200;
  config.model.width = 32;
  config.model.heads = 2;
  config.model.head_dim = 16;
  config.model.layers = 6;
  config.model.norm_eps = 0.0078125;
  config.model.zero_outputs = false;
  config.head.precision = LmHeadChoice::fp32;
  config.window.layers = "LSSSSL";
  config.train.length = 384;
  config.validation.length = 384;
  return config;
}

inline std::vector<kernels::Token> random_tokens(int count) {
  std::mt19937 generator(5);
  std::vector<kernels::Token> tokens(count);
  for (auto& token : tokens) token = static_cast<kernels::Token>(generator() % end_of_text);
  for (const int at : {0, 50, 177, 300}) {
    if (at < count) tokens[at] = end_of_text;
  }
  return tokens;
}

/// A learner in double and a sequence.
struct Fixture : Learner<double> {
  explicit Fixture(const Config& config)
      : Learner(config, test_comm(), end_of_text, {}), tokens(random_tokens(config.train.length + 1)) {
    optimizer.initialise(7);
  }

  double loss(int window) {
    config.window.first = config.window.last = window;
    return model.validate(trace, Sequence::of(tokens), 0);
  }
  double forward_backward(int window, kernels::Output output = kernels::Output::overwrite) {
    config.window.first = config.window.last = window;
    const DeviceSequence sequence = model.upload(trace, Sequence::of(tokens), windows_at(config, 0));
    const bool accumulate = output == kernels::Output::accumulate;
    model.forward_backward(trace, sequence, 0, {.matrices = accumulate, .others = accumulate});
    model.loss().collect({});
    return model.loss().value() / config.train.length;
  }
  /// Moves all weights away from where gradients vanish.
  void disturb() {
    std::mt19937 generator(11);
    std::normal_distribution<double> normal(0, 0.1);
    for (double& w : weights.tensors()) w += normal(generator);
    for (double& w : weights.scalars()) w += normal(generator);
    weights.note_replaced();
  }
  /// To be read, or to be written before the next pass.
  double& weight(const Parameter& p, std::size_t i) {
    weights.note_replaced();
    const std::size_t tensors = table.tensor_size();
    return p.offset < tensors ? weights.tensors()[p.offset + i] : weights.scalars()[p.offset - tensors + i];
  }

  double gradient(const Parameter& p, std::size_t i) { return gradients.data()[table.gradient_at(p.offset) + i]; }

  Trace trace = untraced(test_comm());
  std::vector<kernels::Token> tokens;
};

enum class At { initial_weights, disturbed_weights };

/// A step of length 1 in the space of the tensor's elements.
using Direction = std::vector<double>;

inline Direction random_direction(std::size_t size) {
  std::mt19937 generator(13);
  std::normal_distribution<double> normal;
  Direction direction(size);
  double squares = 0;
  for (double& d : direction) {
    d = normal(generator);
    squares += d * d;
  }
  for (double& d : direction) d /= std::sqrt(squares);
  return direction;
}

inline double finite_difference(Fixture& f, const Parameter& p, int window, const Direction& direction) {
  const double h = 1e-5;
  Direction kept(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) kept[i] = f.weight(p, i);
  const auto loss_at = [&](double step) {
    for (std::size_t i = 0; i < p.size(); ++i) f.weight(p, i) = kept[i] + step * direction[i];
    return f.loss(window);
  };
  const double difference = (loss_at(h) - loss_at(-h)) / (2 * h);
  for (std::size_t i = 0; i < p.size(); ++i) f.weight(p, i) = kept[i];
  return difference;
}

/// Of each tensor the derivative in a random direction, in which all elements count, and that of the element with the
/// largest gradient. `silent` names a tensor whose gradient must be exactly zero.
inline void check_all_gradients(const Config& config, int window, At at = At::initial_weights,
                                const std::string& silent = "") {
  Fixture f(config);
  if (at == At::disturbed_weights) f.disturb();
  EXPECT_NEAR(f.forward_backward(window), f.loss(window), 1e-12);
  for (const Parameter& p : f.table.parameters()) {
    if (p.group == Group::fixed) continue;
    SCOPED_TRACE(p.name);
    std::size_t largest = 0;
    for (std::size_t i = 1; i < p.size(); ++i)
      if (std::abs(f.gradient(p, i)) > std::abs(f.gradient(p, largest))) largest = i;
    const double scale = std::abs(f.gradient(p, largest));
    EXPECT_EQ(scale == 0, p.name == silent) << "largest gradient " << scale;

    // The second term of the tolerance is the rounding of a loss near 5, divided by 2 h.
    const double tolerance = 1e-6 * scale + 3e-10;
    const Direction direction = random_direction(p.size());
    double along = 0;
    for (std::size_t i = 0; i < p.size(); ++i) along += direction[i] * f.gradient(p, i);
    EXPECT_NEAR(along, finite_difference(f, p, window, direction), tolerance);
    Direction axis(p.size(), 0.0);
    axis[largest] = 1;
    EXPECT_NEAR(f.gradient(p, largest), finite_difference(f, p, window, axis), tolerance) << "element " << largest;
  }
}

/// Each kind of train.recompute gives the loss and the gradients without it, and takes less memory than the one before.
inline void check_recomputing(Config config) {
  SCOPED_TRACE(config.model.layers);
  Fixture kept(config);
  kept.disturb();
  const double loss = kept.forward_backward(256);
  std::size_t bytes = Model<double>::memory_bytes(kept.config);
  const auto check = [&](Recompute kind, const std::vector<int>& layers) {
    config.train.recompute = kind;
    config.train.recompute_layers = layers;
    Fixture formed_again(config);
    formed_again.disturb();
    EXPECT_EQ(formed_again.forward_backward(256), loss);
    for (std::size_t i = 0; i < kept.table.gradient_size(); ++i)
      ASSERT_EQ(kept.gradients.data()[i], formed_again.gradients.data()[i]) << i;
    EXPECT_LT(Model<double>::memory_bytes(formed_again.config), bytes);
    bytes = Model<double>::memory_bytes(formed_again.config);
  };
  check(Recompute::mlp, {0, config.model.layers - 1});
  check(Recompute::mlp, {});
  check(Recompute::block, {});
}

}  // namespace nanorun
