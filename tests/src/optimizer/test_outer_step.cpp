// The outer step around all updates, by hand.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/learner.hpp"
#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

constexpr int steps = 9, every = 3;
constexpr double lr = 0.7, momentum = 0.5;

Config outer_config(int outer_every) {
  Config config = tiny_config();
  config.train.steps = steps;
  config.train.length = config.validation.length = 128;
  config.optimizer.outer_every = outer_every;
  config.optimizer.outer_lr = lr;
  config.optimizer.outer_momentum = momentum;
  return config;
}

/// A learner in double whose gradients are all one: its updates do not depend on its weights.
struct Fixture : Learner<double> {
  explicit Fixture(const Config& config) : Learner(config, test_comm(), 0, {}) { optimizer.initialise(7); }

  void step(long step) {
    ops::fill<double>({}, gradients.span(), 1);
    for (int layer = config.model.layers; layer >= -1; --layer) optimizer.start_reduce_scatter(trace, layer, step);
    optimizer.step(trace, step);
  }
  std::vector<double> values() const {
    std::vector<double> all(weights.tensors().begin(), weights.tensors().end());
    all.insert(all.end(), weights.scalars().begin(), weights.scalars().end());
    return all;
  }

  Trace trace = untraced(test_comm());
};

TEST(OuterStep, TakesTheSumOfUpdatesAsAGradient) {
  Fixture inner(outer_config(0)), outer(outer_config(every));
  std::vector<double> w = inner.values(), slow = w, u(w.size()), before = w;
  for (long step = 0; step < steps; ++step) {
    inner.step(step);
    outer.step(step);
    const std::vector<double> now = inner.values();
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] += now[i] - before[i];
      if ((step + 1) % every != 0) continue;
      const double d = slow[i] - w[i];
      u[i] = momentum * u[i] + d;
      slow[i] -= lr * (d + momentum * u[i]);
      w[i] = slow[i];
    }
    before = now;
    const std::vector<double> got = outer.values();
    for (std::size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(got[i], w[i], 1e-12) << "step " << step << ", element " << i;
  }
}

TEST(OuterStep, GoesOnFromSlabs) {
  const Config config = outer_config(every);
  Fixture whole(config), first(config), second(config);
  for (long step = 0; step < steps; ++step) whole.step(step);
  for (long step = 0; step < 5; ++step) first.step(step);
  std::map<std::string, std::span<double>> from;
  for (const Slab<double>& slab : first.optimizer.slabs()) from[slab.dataset] = slab.data;
  for (const char* name : {"/outer/weights/embedding", "/outer/momentum/block.1.qkv"})
    EXPECT_TRUE(from.contains(name)) << name;
  for (const Slab<double>& slab : second.optimizer.slabs()) std::ranges::copy(from.at(slab.dataset), slab.data.begin());
  second.optimizer.restore();
  for (long step = 5; step < steps; ++step) second.step(step);
  EXPECT_EQ(second.values(), whole.values());
}

}  // namespace
}  // namespace nanorun
