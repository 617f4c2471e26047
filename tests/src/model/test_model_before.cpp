// The model with mixes before attention, as GPT-2 Medium's record 18 has them.

#include <gtest/gtest.h>

#include <vector>

#include "src/model/model.hpp"
#include "tests/support/model_fixture.hpp"

namespace nanorun {
namespace {

/// GPT-2 Medium's mechanisms.
Config medium_features() {
  Config config = small_config();
  ModelConfig& model = config.model;
  model.residual = Residual::before;
  model.norm_eps = 1.1920928955078125e-07;
  model.attention_scale = 0.3;
  model.layers = 8;
  model.heads = 4;
  model.head_dim = 8;
  model.second_embedding = true;
  model.smear = true;
  model.gate_columns = 10;
  model.value_path = ValuePath::gated_embeddings;
  model.value_layers = {0, 1, 5, 7};
  model.value_layers_gated_by_input = {0, 5, 7};
  model.value_tables = {0, 1, 0, 1};
  model.gated_layers = {0, 1, 2, 3, 4, 5, 6, 7};
  model.key_offset_layers = {0, 7};
  model.skip_from = {3, 1, 3};
  model.skip_to = {4, 5, 6};
  model.skip_gate = true;
  model.backout_from = 3;
  config.window = {WindowKind::tokens_before, "LSSSSSSL", 64, 1792, 32, Rounding::ceil};
  config.train.length = config.validation.length = 128;
  return config;
}

/// Paired heads where values have gates, with and without their rows among what these read, and behind a skip.
Config paired_features() {
  Config config = medium_features();
  config.model.paired_layers = {1, 3, 5};
  return config;
}

/// Few of them, layers without attention, one with paired heads, and bigrams in the place of the second embedding.
Config before_features() {
  Config config = small_config();
  ModelConfig& model = config.model;
  model.residual = Residual::before;
  model.value_path = ValuePath::none;
  model.bigram_rows = 31;
  model.bigram_columns = 20;
  model.layers_without_attention = {0, 4};
  model.skip_from = {1, 4};
  model.skip_to = {4, 5};
  model.xsa_layers = {1};
  model.paired_layers = {3};
  return config;
}

TEST(ModelMixedBefore, GradientsMatchFiniteDifferences) {
  check_all_gradients(medium_features(), 96, At::disturbed_weights);
  check_all_gradients(paired_features(), 96, At::disturbed_weights);
  check_all_gradients(before_features(), 128, At::disturbed_weights);
}

/// Output projections are zero at the start, and their factors have no gradient there.
TEST(ModelMixedBefore, FactorsOfBranchesThatAreZeroHaveNoGradient) {
  Config config = medium_features();
  config.model.zero_outputs = true;
  Fixture f(config);
  f.forward_backward(96);
  for (int layer = 0; layer < config.model.layers; ++layer)
    EXPECT_EQ(f.gradient(f.table.find(block_name(layer, "attention_factors")), 1), 0) << layer;
}

/// Nothing is left of attention in the sum then; its factor has a gradient all the same.
TEST(ModelMixedBefore, FactorsOfZeroHaveTheirGradients) {
  Fixture f(before_features());
  f.disturb();
  double& factor = f.weight(f.table.find("block.2.attention_factors"), 1);
  factor = 0;
  f.forward_backward(128);
  const double gradient = f.gradient(f.table.find("block.2.attention_factors"), 1);
  constexpr double h = 1e-5;
  factor = h;
  const double above = f.loss(128);
  factor = -h;
  const double slope = (above - f.loss(128)) / (2 * h);
  EXPECT_GT(std::abs(slope), 1e-6);
  EXPECT_NEAR(gradient, slope, 1e-6 * std::abs(slope) + 3e-10);
}

TEST(ModelMixedBefore, RecomputingChangesNoBitAndSavesMemory) {
  for (const Config& config : {medium_features(), before_features()}) check_recomputing(config);
}

TEST(ModelMixedBefore, TheMlpInFp8IsForTrainingAlone) {
  Config config = medium_features();
  Fixture working(config);
  config.train.mlp_precision = MlpPrecision::fp8;
  Fixture fp8(config);
  working.disturb();
  fp8.disturb();
  const double loss = working.loss(128);
  EXPECT_EQ(fp8.loss(128), loss);
  const double quantised = fp8.forward_backward(128);
  EXPECT_GT(std::abs(quantised - loss), 1e-6);
  EXPECT_NEAR(quantised, loss, 1e-2 * loss);
}

/// What is sent to a stream first overwrites its gradient.
TEST(ModelMixedBefore, GradientsDependOnNoEarlierPass) {
  for (const Config& config : {medium_features(), before_features()}) {
    Fixture f(config);
    f.disturb();
    f.forward_backward(96);
    const std::vector<double> once(f.gradients.span().begin(), f.gradients.span().end());
    f.forward_backward(96);
    for (std::size_t i = 0; i < once.size(); ++i) ASSERT_EQ(f.gradients.data()[i], once[i]);
  }
}

/// Layers that share a table of value embeddings train it together.
TEST(ModelMixedBefore, LayersShareValueEmbeddings) {
  Config config = medium_features();
  Fixture f(config);
  int tables = 0;
  for (const Parameter& p : f.table.parameters()) tables += p.name.starts_with("value_embedding.") ? 1 : 0;
  EXPECT_EQ(tables, 2);
  EXPECT_EQ(f.table.find("value_embedding.1").size(), 200u * 32);
  EXPECT_EQ(f.table.find("block.5.value_gate").cols, 10);
}

}  // namespace
}  // namespace nanorun
