// When the optimizer updates what; test_golden and test_rank_count know what comes out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/support/learner.hpp"

namespace nanorun {
namespace {

Config small_config() {
  Config config;
  config.model.vocabulary = 61;
  config.model.width = 32;
  config.model.heads = 2;
  config.model.head_dim = 16;
  config.train.length = config.validation.length = 128;
  return config;
}

/// A learner in double whose gradients are all one.
struct Fixture : Learner<double> {
  explicit Fixture(const Config& config) : Learner(config, test_comm(), 0, {}) {
    optimizer.initialise(7);
    fill_gradients();
  }

  void fill_gradients() { ops::fill<double>({}, gradients.span(), 1); }
  std::vector<double> values() const {
    std::vector<double> all(weights.tensors().begin(), weights.tensors().end());
    all.insert(all.end(), weights.scalars().begin(), weights.scalars().end());
    return all;
  }
  /// Names of the parameters with an element that differs.
  std::set<std::string> changed_since(const std::vector<double>& before) const {
    const std::vector<double> now = values();
    std::set<std::string> names;
    for (const Parameter& p : table.parameters()) {
      const std::span<const double> then(&before[p.offset], p.size());
      if (!std::equal(then.begin(), then.end(), &now[p.offset])) names.insert(p.name);
    }
    return names;
  }

  Trace trace = untraced(test_comm());
};

TEST(Optimizer, UpdatesInTheBackwardPassWaitForNoTransferThatABlockDoesNotHide) {
  Fixture f(small_config());
  ASSERT_EQ(f.config.model.layers, 12);
  const std::vector<double> start = f.values();
  // By the layer that the backward pass has just left: its block hides what was handed over before.
  const std::map<int, std::set<std::string>> expected = {
      {11, {"head"}}, {1, {"value_embedding.2"}}, {0, {"value_embedding.1"}}};
  for (int layer = 12; layer >= -1; --layer) {
    const std::vector<double> before = f.values();
    f.optimizer.start_reduce_scatter(f.trace, layer, 0);
    const auto found = expected.find(layer);
    EXPECT_EQ(f.changed_since(before), found == expected.end() ? std::set<std::string>() : found->second) << layer;
  }
  f.optimizer.step(f.trace, 0);
  EXPECT_EQ(f.changed_since(start).size(), f.table.parameters().size());
}

TEST(Optimizer, EveryStepUpdatesEveryTensorOnce) {
  Fixture f(small_config());
  for (int step = 0; step < 3; ++step) {
    const std::vector<double> before = f.values();
    for (int layer = f.config.model.layers; layer >= -1; --layer)
      f.optimizer.start_reduce_scatter(f.trace, layer, step);
    f.optimizer.step(f.trace, step);
    EXPECT_EQ(f.changed_since(before).size(), f.table.parameters().size());
    // With gradients that never change Adam moves every element by the learning rate.
    const double lr = f.config.optimizer.lr_head,
                 moved = before[f.table.find("head").offset] - f.values()[f.table.find("head").offset];
    EXPECT_NEAR(moved, lr, 1e-6 * lr) << step;
    f.fill_gradients();
  }
}

/// A step on a sequence that reads a few of the tokens: gradients are one where it reads, and in all that is no table.
/// The optimizer may be told before which rows these are.
enum class Rows { announced, unknown };
void step_on(Fixture& f, int step, Rows rows) {
  std::vector<kernels::Token> tokens(f.config.train.length + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<kernels::Token>((i % 5 + 7 * step) % 40);
  const DeviceSequence sequence =
      f.model.upload(f.trace, Sequence::of(tokens), {.short_tokens = 128, .long_tokens = 128});
  if (rows == Rows::announced) f.optimizer.read_rows(f.trace, sequence, step);
  f.fill_gradients();
  for (const Bucket& bucket : f.table.buckets()) {
    if (bucket.group != Group::embedding) continue;
    const std::span<double> table = f.gradients.span().subspan(bucket.offset, bucket.size());
    ops::fill<double>({}, table, 0);
    for (const kernels::Token token : sequence.tokens) {
      ops::fill<double>({}, table.subspan(token * bucket.unit_size, bucket.unit_size), 1);
    }
  }
  for (int layer = f.config.model.layers; layer >= -1; --layer) f.optimizer.start_reduce_scatter(f.trace, layer, step);
  f.optimizer.step(f.trace, step);
}

/// Value embeddings have a longer period from a step on.
void add_late_tables(Config& config, int period, int from) {
  config.group = {{{"value_embedding.*"}, 0.3, 0.75, 0.95, 2}};
  config.group[0].period = period;
  config.group[0].period_from = from;
}

/// The restart is within a period, but for one of 1. With a late period tables of the same tokens have two of them.
void expect_all_updates(int period, int late_period = 0, int late_from = 0) {
  SCOPED_TRACE(fmt::format("{} {} {}", period, late_period, late_from));
  Config config = small_config();
  config.optimizer.adam_period = period;
  if (late_period > 0) add_late_tables(config, late_period, late_from);
  Fixture waiting(config), whole(config);
  const auto rows_behind = [&] {
    const std::vector<double> a = waiting.values(), b = whole.values();
    std::set<std::size_t> rows;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) rows.insert(i / config.model.width);
    }
    return rows.size();
  };
  const auto expect_same_state = [&] {
    const std::vector<Slab<double>> a = waiting.optimizer.slabs(), b = whole.optimizer.slabs();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].dataset.starts_with("/adam/gradient")) continue;
      EXPECT_TRUE(std::ranges::equal(a[i].data, b[i].data)) << a[i].dataset;
    }
    EXPECT_EQ(rows_behind(), 0u);
  };
  for (int step = 0; step < 21; ++step) {
    step_on(waiting, step, Rows::announced);
    step_on(whole, step, Rows::unknown);
    if (step == 10) {
      // A checkpoint asks for the complete state; restore() takes it over.
      EXPECT_GT(rows_behind(), late_period == 0 ? 20u : 10u);
      expect_same_state();
      waiting.optimizer.restore();
    }
  }
  EXPECT_GT(rows_behind(), 20u);
  waiting.optimizer.complete_rows();
  expect_same_state();
}

TEST(Optimizer, RowsThatWaitGetAllTheirUpdates) {
  for (const int period : {1, 2, 3}) expect_all_updates(period);
  for (const int from : {0, 6, 7, 11}) expect_all_updates(2, 4, from);
}

/// A step with gradients of one more for each step whose gradients the optimizer keeps.
void step_adding(Fixture& f, int step) {
  const bool keeps = f.optimizer.keeps_gradients(step);
  f.optimizer.begin_step(step);
  for (double& x : f.gradients.span()) x = (keeps ? x : 0) + 1;
  for (int layer = f.config.model.layers; layer >= -1; --layer) f.optimizer.start_reduce_scatter(f.trace, layer, step);
  f.optimizer.step(f.trace, step);
}

/// The values of the slabs whose names begin so, which are all alike.
double value_of(Fixture& f, const std::string& group) {
  std::set<double> values;
  for (const Slab<double>& slab : f.optimizer.slabs()) {
    if (slab.dataset.starts_with(group)) values.insert(slab.data.begin(), slab.data.end());
  }
  EXPECT_EQ(values.size(), 1u) << group;
  return values.empty() ? 0 : *values.begin();
}

/// A run with a period of Adam is continued after some steps with another. `counted` are the steps whose gradients the
/// next update uses, those before the restart included.
void expect_counted(int before, int steps, int after, int counted) {
  SCOPED_TRACE(fmt::format("{} -> {} after {} steps", before, after, steps));
  Config config = small_config();
  config.optimizer.adam_period = before;
  Fixture first(config);
  for (int step = 0; step < steps; ++step) step_adding(first, step);
  config.optimizer.adam_period = after;
  Fixture second(config);
  const std::vector<Slab<double>> from = first.optimizer.slabs(), to = second.optimizer.slabs_to_fill();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i].data, to[i].data.begin());
  second.optimizer.restore({.gradients_wait = first.optimizer.keeps_gradients(steps)});
  const double m = value_of(second, "/adam/m/"), beta1 = config.optimizer.adam_beta1;
  int step = steps;
  while ((step + 1) % after != 0) step_adding(second, step++);
  if (step > steps) {
    EXPECT_EQ(value_of(second, "/adam/gradient/"), counted - 1);
  }
  step_adding(second, step);
  const double gradient = (value_of(second, "/adam/m/") - beta1 * m) / (1 - beta1) * config.train.sequences;
  EXPECT_NEAR(gradient, counted, 1e-9);
  // What this update has used counts no more.
  for (int i = 0; i + 1 < after; ++i) step_adding(second, ++step);
  EXPECT_EQ(value_of(second, "/adam/gradient/"), after - 1);
}

TEST(Optimizer, GradientsCountOnceWhereThePeriodOfAdamChanges) {
  expect_counted(2, 4, 2, 2);
  expect_counted(2, 3, 2, 2);
  expect_counted(2, 4, 3, 2);  // in the middle of the new period, with gradients that an update has used
  expect_counted(3, 4, 2, 3);  // at the beginning of the new period, with one that waits
  expect_counted(2, 3, 3, 4);
  expect_counted(3, 3, 2, 1);
}

/// Updates of every fourth step are those of every second one whose gradients come in every other update, but for
/// betas: without momentum and with the square of beta2 they are the same.
TEST(Optimizer, ALatePeriodSumsGradientsOfItsSteps) {
  Config late = small_config(), twice = late;
  late.optimizer.adam_period = twice.optimizer.adam_period = 2;
  late.optimizer.decay_kind = twice.optimizer.decay_kind = DecayKind::plain;
  add_late_tables(late, 4, 8);
  late.group[0].beta1 = 0.6;
  late.group[0].decay = 0;
  twice.group = {{{"value_embedding.*"}, 0.3, 0.36, 0.95 * 0.95, 0}};
  Fixture a(late), b(twice);
  const Parameter& table = a.table.find("value_embedding.0");
  const auto part = [&](Fixture& f) { return f.gradients.span().subspan(table.offset, table.size()); };
  const auto slab = [&](Fixture& f, const char* group) {
    for (const Slab<double>& kept : f.optimizer.slabs()) {
      if (kept.dataset == group + table.name) return std::vector<double>(kept.data.begin(), kept.data.end());
    }
    return std::vector<double>();
  };
  const auto step_with = [&](Fixture& f, int step, double gradient) {
    f.optimizer.begin_step(step);
    const std::span<double> g = part(f);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += gradient * (1 + static_cast<double>(i % 7));
    for (int layer = f.config.model.layers; layer >= -1; --layer)
      f.optimizer.start_reduce_scatter(f.trace, layer, step);
    f.optimizer.step(f.trace, step);
  };
  for (Fixture* f : {&a, &b}) f->optimizer.begin_step(0);
  const std::vector<double> start = slab(a, "/weights/");
  for (int step = 8; step < 11; ++step) step_with(a, step, step);
  EXPECT_EQ(slab(a, "/weights/"), start);
  EXPECT_EQ(slab(a, "/adam/gradient/")[0], 8 + 9 + 10);
  // A restart in the middle of the four steps keeps the sum, though other gradients do not wait.
  Fixture again(late);
  const std::vector<Slab<double>> from = a.optimizer.slabs(), to = again.optimizer.slabs_to_fill();
  for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i].data, to[i].data.begin());
  again.optimizer.restore({.late_sums_wait = true});
  for (Fixture* f : {&a, &again}) step_with(*f, 11, 11);
  EXPECT_EQ(slab(a, "/weights/"), slab(again, "/weights/"));
  EXPECT_NE(slab(a, "/weights/"), start);
  EXPECT_EQ(slab(a, "/adam/gradient/")[0], 0);
  for (int step = 10; step < 12; ++step) step_with(b, step, step == 10 ? 38 : 0);
  for (const char* const moment : {"/adam/m/", "/adam/v/"}) {
    const std::vector<double> found = slab(a, moment), expected = slab(b, moment);
    EXPECT_GT(expected.at(0), 0);
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-12 * expected[i]) << moment;
  }
}

/// Names of the parameters all of whose weights are bf16 values.
std::set<std::string> in_bf16(const Fixture& f) {
  const std::vector<double> values = f.values();
  std::set<std::string> names;
  for (const Parameter& p : f.table.parameters()) {
    const std::span<const double> of(&values[p.offset], p.size());
    const auto exact = [](double x) { return x == kernels::round_to_bf16(static_cast<float>(x)); };
    if (std::ranges::all_of(of, exact)) names.insert(p.name);
  }
  return names;
}

TEST(Optimizer, RoundsWeightsAtTheStartAndAfterEachUpdate) {
  Config config = small_config();
  config.model.tied_head = true;
  config.train.untie_step = 1;
  config.group = {{{"head", "value_embedding.1"}, 0.01, 0.8, 0.95, 0, GroupFormat::bf16, GroupFormat::bf16},
                  {{"block.3.*"}, 0.01, 0.8, 0.95, 0, GroupFormat::bf16, GroupFormat::bf16}};
  Fixture f(config);
  const std::set<std::string> start = in_bf16(f);
  EXPECT_TRUE(start.contains("head") && start.contains("value_embedding.1") && start.contains("embedding"));
  EXPECT_FALSE(start.contains("value_embedding.0"));
  for (int step = 0; step < 4; ++step) {
    for (int layer = f.config.model.layers; layer >= -1; --layer)
      f.optimizer.start_reduce_scatter(f.trace, layer, step);
    f.optimizer.step(f.trace, step);
    // A tied embedding has the head's format.
    const std::set<std::string> expected{"head", "embedding", "value_embedding.1", "block.3.residual_mix",
                                         "block.3.value_mix"};
    EXPECT_EQ(in_bf16(f), expected) << step;
    f.fill_gradients();
  }
}

TEST(Optimizer, KnowsTheNormOfTheMeanGradient) {
  Config config = small_config();
  config.train.sequences = 4;  // over which the gradients are sums
  Fixture f(config);
  const Parameter& head = f.table.find("head");
  const auto all = static_cast<double>(f.table.size()), threes = static_cast<double>(head.size());
  for (int step = 0; step < 2; ++step) {
    f.fill_gradients();
    ops::fill<double>({}, f.gradients.span().subspan(head.offset, head.size()), 3);
    for (int layer = config.model.layers; layer >= -1; --layer) f.optimizer.start_reduce_scatter(f.trace, layer, step);
    f.optimizer.step(f.trace, step);
    f.optimizer.collect();
    EXPECT_NEAR(f.optimizer.gradient_squares(), (all + 8 * threes) / 16, 1e-9 * all) << step;
    EXPECT_FALSE(f.optimizer.overflowed());
  }
}

/// Adam's first moments after a step on gradients of one, which are those of `scale` times the mean loss.
std::map<std::string, double> moments_of(const Config& config, double scale = 1) {
  Fixture f(config);
  ops::fill<double>({}, f.gradients.span(), scale * config.train.sequences);
  for (int layer = config.model.layers; layer >= -1; --layer) f.optimizer.start_reduce_scatter(f.trace, layer, 0);
  f.optimizer.step(f.trace, 0);
  std::map<std::string, double> moments;
  for (const Slab<double>& slab : f.optimizer.slabs()) {
    for (const char* const group : {"/adam/m/", "/muon/momentum/"}) {
      if (slab.dataset.starts_with(group)) moments[slab.dataset] = slab.data[slab.data.size() / 2];
    }
  }
  return moments;
}

/// The norm of all gradients, those of tied tensors in one, which are twice as large.
double norm_of_ones(const Config& config) {
  const ParameterTable table(config.model);
  const double twice = config.model.tied_head ? static_cast<double>(table.find("head").size()) : 0;
  return std::sqrt(static_cast<double>(table.size()) + 2 * twice);
}

TEST(Optimizer, ClipsTheNormOfAllGradientsBeforeTheMomenta) {
  for (const bool tied : {false, true}) {
    Config config = small_config();
    config.model.tied_head = tied;
    const std::map<std::string, double> expected = moments_of(config);
    EXPECT_TRUE(expected.contains("/adam/m/head") && expected.contains("/muon/momentum/block.0.qkv"));
    const double norm = norm_of_ones(config);
    for (const double part : {0.25, 1.01}) {
      Config clipped = config;
      clipped.optimizer.clip_norm = part * norm;
      const std::map<std::string, double> got = moments_of(clipped);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, moment] : expected) {
        EXPECT_NEAR(got.at(name), std::min(part, 1.0) * moment, 1e-12) << name << " " << part;
      }
    }
  }
}

TEST(Optimizer, TellsTheNormBeforeItIsClipped) {
  Config config = small_config();
  config.train.sequences = 4;
  config.optimizer.clip_norm = 0.5;
  Fixture f(config);
  const auto step = [&](long step, double gradient) {
    ops::fill<double>({}, f.gradients.span(), gradient);
    for (int layer = config.model.layers; layer >= -1; --layer) f.optimizer.start_reduce_scatter(f.trace, layer, step);
    f.optimizer.step(f.trace, step);
    f.optimizer.collect();
  };
  const auto all = static_cast<double>(f.table.size());
  for (int i = 0; i < 2; ++i) {
    step(i, 2);
    EXPECT_NEAR(f.optimizer.gradient_squares(), all / 4, 1e-9 * all);
    EXPECT_FALSE(f.optimizer.overflowed());
  }
  step(2, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(f.optimizer.overflowed());
}

}  // namespace
}  // namespace nanorun
