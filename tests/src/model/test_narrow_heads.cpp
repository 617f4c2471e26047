// Q and K that are narrower than the heads, in some layers or in all (model.qk_dims).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/config/schedule.hpp"
#include "src/model/flops.hpp"
#include "tests/support/model_fixture.hpp"
#include "tests/support/record89_mechanisms.hpp"

namespace nanorun {
namespace {

/// Record 89's mechanisms, with heads of 8.
Config wide_features() {
  Config config = small_config();
  add_small_record89(config);
  config.model.norm_eps = 0x1p-23;
  return config;
}

/// Half as wide in the layers with the short window, where all their pairs turn.
Config narrow_features() {
  Config config = wide_features();
  config.model.qk_dims = {4, 4, 4, 8, 4, 4, 0, 4, 4, 4, 8};
  config.model.attention_scale_narrow = 0.6;
  return config;
}

/// Three quarters as wide in all layers; half of their pairs turn, and keys take the other ones from the token before.
Config narrow_everywhere() {
  Config config = wide_features();
  config.model.heads = 2;
  config.model.head_dim = 16;
  config.model.qk_dims = {12};
  return config;
}

TEST(NarrowHeads, GradientsMatchFiniteDifferences) {
  check_all_gradients(narrow_features(), 96, At::disturbed_weights);
}

TEST(NarrowHeads, GradientsWithKeyOffsetMatchFiniteDifferences) {
  check_all_gradients(narrow_everywhere(), 96, At::disturbed_weights);
}

TEST(NarrowHeads, GradientsOfAPlainMixBeforeBlocksMatchFiniteDifferences) {
  Config config = small_config();
  ModelConfig& model = config.model;
  model.residual = Residual::before;
  model.value_path = ValuePath::none;
  model.layers = 3;
  model.qk_dims = {8, 16, 12};
  model.paired_layers = {0};
  model.key_offset_layers = {1, 2};
  config.window = {WindowKind::token, "SLL", 64, 1792, 64, Rounding::floor};
  check_all_gradients(config, 128, At::disturbed_weights);
}

/// Where the mean of the norm runs over half as many dims, q kᵀ is twice as large.
TEST(NarrowHeads, AreWideOnesWithDeadRowsOfZeros) {
  Config config = narrow_features(), wide_config = wide_features();
  config.model.norm_eps = wide_config.model.norm_eps = 1e-30;
  Fixture narrow(config), wide(wide_config);
  narrow.disturb();
  std::ranges::copy(narrow.weights.tensors(), wide.weights.tensors().begin());
  std::ranges::copy(narrow.weights.scalars(), wide.weights.scalars().begin());
  std::size_t dead = 0;
  for (const Parameter& p : narrow.table.parameters()) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!p.is_dead(i / p.cols)) continue;
      EXPECT_NE(narrow.weight(p, i), 0);  // what lies there is not read
      wide.weight(p, i) = 0;
      ++dead;
    }
  }
  EXPECT_EQ(dead, std::size_t{8} * 2 * 4 * 4 * 32);  // layers, matrices, heads, rows and columns
  const double loss = wide.forward_backward(96);
  EXPECT_NEAR(narrow.forward_backward(96), loss, 1e-13);
  EXPECT_NEAR(narrow.loss(96), loss, 1e-12);
  for (const Parameter& p : narrow.table.parameters()) {
    if (p.group == Group::fixed) continue;
    for (std::size_t i = 0; i < p.size(); ++i) {
      ASSERT_NEAR(narrow.gradient(p, i), wide.gradient(p, i), 1e-12) << p.name << "[" << i << "]";
      if (p.is_dead(i / p.cols)) {
        ASSERT_EQ(narrow.gradient(p, i), 0) << p.name << "[" << i << "]";
      }
    }
  }
}

TEST(NarrowHeads, DeadRowsStartAtZeroAndOthersAsEver) {
  const Fixture narrow(narrow_features()), wide(wide_features());
  const Parameter& narrow_layer = narrow.table.find("block.1.qkv");
  EXPECT_EQ(narrow_layer.live_size(), std::size_t{64} * 32);
  EXPECT_EQ(narrow.table.find("block.3.qkv").live_size(), std::size_t{96} * 32);
  const auto at = [](const Fixture& f, std::size_t i) { return f.weights.tensors()[i]; };
  for (std::size_t row = 0; row < 96; ++row) {
    const bool is_dead = row < 64 && row % 4 >= 2;
    EXPECT_EQ(narrow_layer.is_dead(row), is_dead) << row;
    for (std::size_t i = narrow_layer.offset + row * 32; i < narrow_layer.offset + (row + 1) * 32; ++i) {
      EXPECT_EQ(at(narrow, i), is_dead ? 0 : at(wide, i));
      EXPECT_NE(at(wide, i), 0);
    }
  }
}

TEST(NarrowHeads, FlopsAreThoseOfTheLiveDims) {
  Config config = narrow_features(), wide_config = wide_features();
  config.window.first = config.window.last = wide_config.window.first = wide_config.window.last = 96;
  const ParameterTable table(config.model), wide_table(wide_config.model);
  const Flops narrow(config, table), wide(wide_config, wide_table);
  const double tokens = 256, width = 32, rows = 32;  // rows of W_q and W_k that a narrow layer does not have
  EXPECT_DOUBLE_EQ(wide.per_sequence_6nd(0) - narrow.per_sequence_6nd(0), 8 * 6 * rows * width * tokens);
  // Four products for q and k on half the dims; in paired layers of twice as many rows for half the heads.
  const double reach = windows_at(config, 0).short_tokens;
  const auto pairs = [=](double length) { return reach * (length - reach / 2); };
  const double saved = 4 * 8 * 4 * pairs(256) + 4 * 8 * 2 * pairs(512);
  EXPECT_DOUBLE_EQ(wide.per_sequence(0) - narrow.per_sequence(0),
                   wide.per_sequence_6nd(0) - narrow.per_sequence_6nd(0) + saved * 4);
}

/// The published numbers of pull requests 344 and 349: Q and K of 96 in all layers, and of 64 in eight.
TEST(NarrowHeads, FrequenciesAndScalesArePublishedOnes) {
  Config config;
  ModelConfig& model = config.model;
  model.attention_scale = 0.1;
  model.qk_dims = {96};
  const RotaryStage everywhere = rotary_stage(config, 0);
  for (int j = 0; j < 64; ++j) {
    EXPECT_NEAR(everywhere.frequencies[j], j < 24 ? std::pow(1024, -j / 23.0) : 0, 1e-12) << j;
  }
  EXPECT_NEAR(attention_scale(model, everywhere, 5), 0.1154701, 5e-8);

  model.layers = 11;
  model.qk_dims = {64, 64, 64, 128, 64, 64, 0, 64, 64, 64, 128};
  model.attention_scale = 0.085;
  model.attention_scale_narrow = 0.12;
  model.yarn = true;
  for (const int window : {384, 896, 1408, 1664}) {
    config.stage.emplace_back();
    config.stage.back().long_window = window;
  }
  const double scales[][2] = {{0.085, 0.12}, {0.099404, 0.140335}, {0.108390, 0.153021}, {0.112011, 0.158134}};
  for (int stage = 0; stage < 4; ++stage) {
    const RotaryStage rotary = rotary_stage(config, stage);
    EXPECT_NEAR(attention_scale(model, rotary, 3), scales[stage][0], 5e-7) << stage;
    EXPECT_NEAR(attention_scale(model, rotary, 0), scales[stage][1], 5e-7) << stage;
  }
  const RotaryStage first = rotary_stage(config, 0);
  for (int j = 0; j < 32; ++j) EXPECT_NEAR(first.frequencies[j], std::pow(1024, -j / 31.0), 1e-12) << j;
  for (int j = 32; j < 64; ++j) EXPECT_EQ(first.frequencies[j], 0);
}

}  // namespace
}  // namespace nanorun
