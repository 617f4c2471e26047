#include "src/model/model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/config/schedule.hpp"
#include "tests/support/model_fixture.hpp"
#include "tests/support/record89_mechanisms.hpp"

namespace nanorun {
namespace {

Config record13_features() {
  Config config = small_config();
  config.model.value_path = ValuePath::first;
  config.model.rotary = RotaryKind::full;
  config.model.rotary_base = 10000;
  config.model.softcap = 30;
  config.window = {WindowKind::token, "L", 64, 1792, 64, Rounding::floor};
  return config;
}

Config record21_features() {
  Config config = small_config();
  config.model.layers_without_attention = {3};
  config.model.attention_scale = 0.12;
  config.model.init_scale = 0.8660254037844386;
  return config;
}

Config record89_features() {
  Config config = small_config();
  add_small_record89(config);
  config.model.norm_eps = 0x1p-23;
  return config;
}

/// Record 89's forms before its gate nets: learned scalars, gates that read a stream, those of record 81's MUDD.
Config record81_features() {
  Config config = record89_features();
  ModelConfig& model = config.model;
  model.gate_nets = false;
  model.composed_layers.clear();
  model.gated_layers = {0, 1, 2, 3, 4, 5, 7, 8, 9, 10};
  model.skip_gate = true;
  model.bigram_columns = 20;
  model.value_layers_gated_by_input = {2, 9};
  model.mudd_scale = 0.2;
  model.mudd_value_scale = 1.15;
  model.mudd_backout = 0.25;
  return config;
}

/// All that a plain stream can have, in rows that cross documents.
Config plain_features() {
  Config config = small_config();
  ModelConfig& model = config.model;
  model.residual = Residual::plain;
  model.value_path = ValuePath::none;
  model.layers = 3;
  model.norm_gains = model.biases = model.head_bias = true;
  model.softcap_kind = kernels::SoftcapKind::isru;
  config.window = {WindowKind::token, "LSL", 64, 1792, 64, Rounding::floor};
  config.data.packing = Packing::rows;
  config.data.row_length = 96;
  return config;
}

/// None of it.
Config bare_plain_features() {
  Config config = plain_features();
  ModelConfig& model = config.model;
  model.norm_gains = model.biases = model.head_bias = model.embedding_norm = false;
  model.softcap_kind = kernels::SoftcapKind::none;
  model.layers_without_attention = {1};
  config.data.packing = Packing::stream;
  return config;
}

TEST(Model, GradientsOfRecord13FeaturesMatchFiniteDifferences) {
  // Layer 0 interpolates between v and v itself, so its value mix has no effect.
  check_all_gradients(record13_features(), 192, At::initial_weights, "block.0.value_mix");
}

TEST(Model, GradientsOfRecord21FeaturesMatchFiniteDifferences) { check_all_gradients(record21_features(), 256); }

/// The lower or the upper of two layers that share a table has no attention.
TEST(Model, GradientsOfATableThatOneLayerReadsMatchFiniteDifferences) {
  Config config = record21_features();
  config.model.layers_without_attention = {0, 5};
  check_all_gradients(config, 128);
}

TEST(Model, GradientsWithoutValuePathMatchFiniteDifferences) {
  Config config = record21_features();
  config.model.value_path = ValuePath::none;
  check_all_gradients(config, 128);
}

TEST(Model, GradientsOfRecord89FeaturesMatchFiniteDifferences) {
  // The table of signs is fixed.
  check_all_gradients(record89_features(), 96, At::disturbed_weights);
}

TEST(Model, GradientsOfRecord81FeaturesMatchFiniteDifferences) {
  check_all_gradients(record81_features(), 96, At::disturbed_weights);
}

TEST(Model, GradientsOfAPlainStreamMatchFiniteDifferences) {
  check_all_gradients(plain_features(), 128, At::disturbed_weights);
  check_all_gradients(bare_plain_features(), 128);
}

TEST(Model, GradientsWithoutNormOfQueriesAndKeysMatchFiniteDifferences) {
  Config config = plain_features();
  config.model.qk_norm = false;
  config.model.layers = 2;
  config.window.layers = "L";
  check_all_gradients(config, 96, At::disturbed_weights);
}

/// Between gains and biases a switch of its own.
TEST(Model, GradientsOfGainsOrBiasesAloneMatchFiniteDifferences) {
  for (const bool gains : {false, true}) {
    SCOPED_TRACE(gains);
    Config config = plain_features();
    config.model.norm_gains = gains;
    config.model.biases = !gains;
    config.model.embedding_norm = !gains;
    check_all_gradients(config, 128, At::disturbed_weights);
  }
}

/// Record 89's stream with few mechanisms beside it.
Config scaled_features() {
  Config config = small_config();
  ModelConfig& model = config.model;
  model.residual = Residual::scaled;
  model.value_path = ValuePath::none;
  model.layers = 4;
  model.bigram_rows = 31;
  model.xsa_layers = {1};
  model.gated_layers = {2};
  model.layers_without_attention = {3};
  config.window.layers = "L";
  return config;
}

/// The factors of branches, each with what it scales.
struct BranchFactor {
  const char *name, *branch;
  int element = 0;
};
constexpr BranchFactor branch_factors[] = {{"block.0.attention_post", "block.0.attention_out"},
                                           {"block.1.attention_factors", "block.1.attention_out", 1},
                                           {"block.2.attention_post", "block.2.attention_out"},
                                           {"block.1.mlp_post", "block.1.mlp_out"},
                                           {"block.0.mlp_post", "block.0.mlp_out"}};

TEST(Model, FactorsOfBranchesThatAreZeroHaveNoGradient) {
  for (const char* zero : {"out", "in"}) {
    Fixture f(scaled_features());
    f.disturb();
    for (const Parameter& p : f.table.parameters()) {
      const bool begins = p.name.ends_with("qkv") || p.name.ends_with("mlp_in"), ends = p.name.ends_with("_out");
      if (!(zero == std::string("out") ? ends : begins)) continue;
      for (std::size_t i = 0; i < p.size(); ++i) f.weight(p, i) = 0;
    }
    f.forward_backward(128);
    for (const auto& [name, branch, i] : branch_factors) EXPECT_EQ(f.gradient(f.table.find(name), i), 0) << name;
    EXPECT_NE(f.gradient(f.table.find("block.1.mlp_residual"), 0), 0);
  }
}

/// Nothing is left of a branch in the sum then; its factor has a gradient all the same.
TEST(Model, FactorsOfZeroHaveTheirGradients) {
  for (const MlpPrecision precision : {MlpPrecision::working, MlpPrecision::fp8}) {
    Config config = scaled_features();
    config.train.recompute = Recompute::block;
    config.train.mlp_precision = precision;
    Fixture f(config);
    f.disturb();
    for (const auto& [name, branch, i] : branch_factors) f.weight(f.table.find(name), i) = 0;
    f.forward_backward(128);
    for (const auto& [name, branch, i] : branch_factors) {
      SCOPED_TRACE(name);
      double& factor = f.weight(f.table.find(name), i);
      constexpr double h = 1e-5;
      factor = h;
      const double above = f.loss(128);
      factor = -h;
      const double slope = (above - f.loss(128)) / (2 * h), gradient = f.gradient(f.table.find(name), i);
      factor = 0;
      EXPECT_GT(std::abs(slope), 1e-6);
      if (precision == MlpPrecision::fp8) {  // validation computes without FP8
        EXPECT_GT(gradient / slope, 0.25);
      } else {
        EXPECT_NEAR(gradient, slope, 1e-6 * std::abs(slope) + 3e-10);
      }
      const Parameter& matrices = f.table.find(branch);
      for (std::size_t k = 0; k < matrices.size(); k += 5) ASSERT_EQ(f.gradient(matrices, k), 0);
    }
  }
}

TEST(Model, ZeroOutputsGiveUniformLoss) {
  Config config = record21_features();
  config.model.zero_outputs = true;
  Fixture f(config);
  EXPECT_NEAR(f.loss(128), std::log(padded_vocabulary(config.model)), 1e-12);
}

/// Also in a model without gradients. The vocabulary has no padding, which the loss counts too.
TEST(Model, NextLogitsGiveTheLoss) {
  Config config = record21_features();
  config.model.vocabulary = 256;
  config.train.length = config.validation.length = 128;
  config.window.first = config.window.last = 128;
  Fixture f(config);
  Model<double> model(f.config, f.table, f.weights, {}, end_of_text, {}, {});
  double loss = 0;
  for (int t = 0; t < config.validation.length; ++t) {
    const auto logits = model.next_logits(f.trace, std::span(f.tokens).first(config.validation.length), 0, t);
    ASSERT_EQ(logits.size(), 256u);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    loss += std::log(sum) - logits[f.tokens[t + 1]];
  }
  EXPECT_NEAR(loss / config.validation.length, f.loss(128), 1e-12);
  EXPECT_EQ(model.validate(f.trace, Sequence::of(f.tokens), 0), f.loss(128));
}

TEST(Model, ValidationMeasuresWhatTheLmHeadReads) {
  Config config = record21_features();
  config.window.first = config.window.last = 128;
  Fixture f(config);
  f.disturb();
  const Parameter& head = f.table.find("head");
  double w = 0;
  for (std::size_t i = 0; i < head.size(); ++i) w = std::max(w, std::abs(f.weight(head, i)));
  EXPECT_EQ(f.model.largest_lm_head_weight(), w);

  LmHeadMagnitudes found;
  EXPECT_EQ(f.model.validate(f.trace, Sequence::of(f.tokens), 0, &found), f.loss(128));
  EXPECT_GE(found.x, 1 - 1e-12);  // the rows' mean square is 1
  EXPECT_LT(found.x, std::sqrt(config.model.width));
  EXPECT_GT(found.g, 0.1);
  EXPECT_LE(found.g, 1);  // the slope of the softcap

  LmHeadMagnitudes raised{.x = 100, .g = 0};
  f.model.validate(f.trace, Sequence::of(f.tokens), 0, &raised);
  EXPECT_EQ(raised.x, 100);
  EXPECT_EQ(raised.g, found.g);
}

Config with_fp8_mlp(Config config) {
  config.train.mlp_precision = MlpPrecision::fp8;
  return config;
}

TEST(Model, RecomputingChangesNoBitAndSavesMemory) {
  for (const Config& config : {record13_features(), with_fp8_mlp(record21_features()), record89_features(),
                               scaled_features(), plain_features()}) {
    check_recomputing(config);
  }
}

/// Training sequences are quantised on either kind of residual stream, validation never is.
TEST(Model, TheMlpInFp8IsForTrainingAlone) {
  for (Config config : {record21_features(), record89_features()}) {
    Fixture working(config);
    config.train.mlp_precision = MlpPrecision::fp8;
    Fixture fp8(config);
    working.disturb();
    fp8.disturb();
    const double loss = working.loss(128);
    EXPECT_EQ(fp8.loss(128), loss);
    EXPECT_NEAR(working.forward_backward(128), loss, 1e-12);
    const double quantised = fp8.forward_backward(128);
    EXPECT_GT(std::abs(quantised - loss), 1e-6);
    EXPECT_NEAR(quantised, loss, 1e-2 * loss);
    EXPECT_EQ(fp8.loss(128), loss);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < fp8.table.gradient_size(); ++i) {
      difference += std::pow(fp8.gradients.data()[i] - working.gradients.data()[i], 2);
      norm += std::pow(working.gradients.data()[i], 2);
    }
    EXPECT_GT(difference, 0);
    EXPECT_LT(difference, 0.04 * norm);
  }
}

TEST(Model, GradientsAddUpOverSequences) {
  Fixture f(record21_features());
  std::ranges::fill(f.gradients.span(), std::numeric_limits<double>::quiet_NaN());  // what the first one replaces
  f.forward_backward(128);
  const std::vector<double> once(f.gradients.span().begin(), f.gradients.span().end());
  f.forward_backward(128, kernels::Output::accumulate);
  for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(f.gradients.data()[i], 2 * once[i], 1e-12);
}

/// Record 89 without MUDD, where only layer 0 attends and the skip joins the stream that it left.
Config one_attention() {
  Config config = record89_features();
  ModelConfig& model = config.model;
  model.mudd = false;
  model.layers_without_attention = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  model.value_path = ValuePath::none;
  model.skip_from = {5};
  model.attention_source = -1;
  model.paired_layers = {0};
  for (auto* layers : {&model.value_layers, &model.xsa_layers, &model.gated_layers, &model.key_offset_layers,
                       &model.composed_layers}) {
    layers->clear();
  }
  return config;
}

TEST(Model, GradientsOfOneAttentionMatchFiniteDifferences) {
  check_all_gradients(one_attention(), 96, At::disturbed_weights);
}

/// Most gradients of streams are not cleared: what is sent to them first overwrites them.
TEST(Model, GradientsDependOnNoEarlierPass) {
  Config without_mudd = record89_features();
  without_mudd.model.mudd = false;
  int kind = 0;
  for (const Config& config : {record13_features(), record21_features(), record89_features(), record81_features(),
                               without_mudd, one_attention(), plain_features(), bare_plain_features()}) {
    SCOPED_TRACE(kind++);
    Fixture f(config);
    f.disturb();
    f.forward_backward(96);
    const std::vector<double> once(f.gradients.span().begin(), f.gradients.span().end());
    f.forward_backward(96);
    for (std::size_t i = 0; i < once.size(); ++i) ASSERT_EQ(f.gradients.data()[i], once[i]);
  }
}

/// In rows the loss depends on no token before the row, but on other documents in it.
TEST(Model, LossOfRowsDependsOnTheRowAlone) {
  Config config = plain_features();
  config.data.row_length = 128;
  config.window.layers = "L";
  config.train.length = config.validation.length = 256;
  Fixture both(config);
  config.train.length = config.validation.length = 128;
  Fixture first(config);
  const double whole = both.loss(1024), part = first.loss(1024);
  both.tokens[10] = first.tokens[10] = 3;  // a document ends at 50
  const double whole_changed = both.loss(1024), part_changed = first.loss(1024);
  EXPECT_NEAR((whole_changed - whole) * 256, (part_changed - part) * 128, 1e-9);
  ASSERT_EQ(first.tokens[50], end_of_text);
  const std::vector<double> losses = first.model.token_losses(first.trace, Sequence::of(first.tokens), 0);
  first.tokens[10] = 4;
  const std::vector<double> changed = first.model.token_losses(first.trace, Sequence::of(first.tokens), 0);
  EXPECT_NE(losses[100], changed[100]) << "attention reaches over the end of a document";
}

TEST(Model, LossDependsOnlyOnTheSameDocument) {
  Fixture f(record21_features());
  Config config = record21_features();
  // The last document begins at 300; with a changed token before it, the losses of its positions stay. Measured as
  // the change of the mean loss against the change over the first 300 positions alone.
  config.train.length = config.validation.length = 256;
  Fixture head(config);
  const double whole = f.loss(1024), part = head.loss(1024);
  f.tokens[10] = head.tokens[10] = 3;
  const double whole_changed = f.loss(1024), part_changed = head.loss(1024);
  EXPECT_NE(part, part_changed);
  EXPECT_NEAR((whole_changed - whole) * 384, (part_changed - part) * 256, 1e-9);
}

}  // namespace
}  // namespace nanorun
