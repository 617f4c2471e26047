// The model with operands in 8 bits under [fp8.mlp] and [fp8.qkv].

#include <gtest/gtest.h>

#include <cmath>

#include "src/model/model.hpp"
#include "tests/support/model_fixture.hpp"
#include "tests/support/record89_mechanisms.hpp"

namespace nanorun {
namespace {

Config unet() {
  Config config = small_config();
  config.model.layers_without_attention = {3};
  config.model.attention_scale = 0.12;
  return config;
}

/// Values whose projection has a factor of its own, paired heads, key offsets.
Config record89() {
  Config config = small_config();
  add_small_record89(config);
  return config;
}

Config plain() {
  Config config = small_config();
  config.model.residual = Residual::plain;
  config.model.value_path = ValuePath::none;
  return config;
}

constexpr Fp8Config fixed_e5m2{
    Fp8Forward::e4m3, Fp8Gradient::e5m2, Fp8Scales::fixed, Fp8WeightScales::delayed, 0, 1.0 / 64, 1.03};
constexpr Fp8Config delayed_e4m3{
    Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::delayed, Fp8WeightScales::exact, 0, 0, 1.25};
constexpr Fp8Config fixed_e4m3{
    Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::fixed, Fp8WeightScales::exact, 0, 1.0 / 448, 1.25};
constexpr Fp8Config forward_alone{
    Fp8Forward::e4m3, Fp8Gradient::working, Fp8Scales::exact, Fp8WeightScales::exact, 0, 0, 1.25};

Config with(Config config, const Fp8Config& mlp, const Fp8Config& qkv) {
  config.fp8.mlp = mlp;
  config.fp8.qkv = qkv;
  return config;
}

std::vector<Config> quantised(const Config& config) {
  return {with(config, fixed_e5m2, {}), with(config, delayed_e4m3, {}), with(config, {}, fixed_e4m3),
          with(config, fixed_e5m2, delayed_e4m3), with(config, forward_alone, forward_alone)};
}

/// Whether the matrix takes part in a product that the deck quantises.
bool is_quantised(const Config& config, const std::string& tensor) {
  const bool mlp = tensor.ends_with(".mlp_in") || tensor.ends_with(".mlp_out");
  return (mlp && config.fp8.mlp.forward != Fp8Forward::working) ||
         (tensor.ends_with(".qkv") && config.fp8.qkv.forward != Fp8Forward::working);
}

/// Losses and gradients change a little, those of the quantised matrices surely, and validation does not.
TEST(ModelFp8, IsForTrainingAloneAndLiesNearTheModelItself) {
  for (const Config& base : {unet(), record89(), plain()}) {
    Fixture working(base);
    working.disturb();
    const double loss = working.forward_backward(128);
    for (const Config& config : quantised(base)) {
      Fixture fp8(config);
      fp8.disturb();
      EXPECT_EQ(fp8.loss(128), working.loss(128));
      const double with_rounding = fp8.forward_backward(128);
      EXPECT_GT(std::abs(with_rounding - loss), 1e-6);
      EXPECT_NEAR(with_rounding, loss, 1e-2 * loss);
      for (const Parameter& p : fp8.table.parameters()) {
        if (!is_quantised(config, p.name)) continue;
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < p.size(); ++i) {
          difference += std::pow(fp8.gradient(p, i) - working.gradient(p, i), 2);
          norm += std::pow(working.gradient(p, i), 2);
        }
        EXPECT_GT(difference, 0) << p.name;
        EXPECT_LT(difference, 0.15 * norm) << p.name;
      }
    }
  }
}

TEST(ModelFp8, RecomputingChangesNoBitAndSavesMemory) {
  for (const Config& base : {unet(), record89(), plain()}) {
    check_recomputing(with(base, fixed_e5m2, delayed_e4m3));
    check_recomputing(with(base, forward_alone, forward_alone));
  }
}

/// The gradient of each matrix adds up over sequences, and so does what is counted.
TEST(ModelFp8, GradientsAddUpOverSequences) {
  Fixture f(with(record89(), fixed_e5m2, fixed_e4m3));
  f.disturb();
  f.forward_backward(128);
  const std::vector<double> once(f.gradients.span().begin(), f.gradients.span().end());
  f.forward_backward(128, kernels::Output::accumulate);
  for (std::size_t i = 0; i < once.size(); ++i) {
    ASSERT_NEAR(f.gradients.data()[i], 2 * once[i], 1e-9 * std::abs(once[i]) + 1e-12) << i;
  }
  f.model.fp8_scales().collect();
  f.model.fp8_scales().share(test_comm());
  const Fp8Saturation mlp = f.model.fp8_scales().mlp.take_saturation();
  const Fp8Saturation qkv = f.model.fp8_scales().qkv.take_saturation();
  const double tokens = 2.0 * f.config.train.length, width = f.config.model.width, layers = f.config.model.layers;
  const auto all = [](const Fp8Saturation& of, Fp8Count count) { return of.all[static_cast<std::size_t>(count)]; };
  EXPECT_EQ(all(mlp, Fp8Count::input), tokens * width * layers);
  EXPECT_EQ(all(mlp, Fp8Count::hidden), tokens * 4 * width * layers);
  EXPECT_EQ(all(mlp, Fp8Count::d_out), tokens * width * layers);
  EXPECT_EQ(all(mlp, Fp8Count::d_hidden), tokens * 4 * width * layers);
  EXPECT_EQ(all(mlp, Fp8Count::d_values), 0);
  const double attending = layers - static_cast<double>(f.config.model.layers_without_attention.size());
  EXPECT_EQ(all(qkv, Fp8Count::input), tokens * width * attending);
  EXPECT_EQ(all(qkv, Fp8Count::d_out), tokens * 2 * width * attending);
  EXPECT_EQ(all(qkv, Fp8Count::d_values), tokens * width * attending);
  EXPECT_EQ(qkv.saturated[static_cast<std::size_t>(Fp8Count::input)], 0) << "a norm never saturates";
}

/// A scale of gradients that is too small cuts them off, and that is counted.
TEST(ModelFp8, GradientsThatSaturateAreCounted) {
  Config config = with(unet(), fixed_e5m2, fixed_e4m3);
  config.fp8.mlp.scale_g = 1e-8;
  config.fp8.qkv.scale_g = 1e-6;
  Fixture f(config);
  f.disturb();
  f.forward_backward(128);
  f.model.fp8_scales().collect();
  f.model.fp8_scales().share(test_comm());
  const auto share = [](const Fp8Saturation& of, Fp8Count count) {
    const auto i = static_cast<std::size_t>(count);
    return of.saturated[i] / of.all[i];
  };
  EXPECT_GT(share(f.model.fp8_scales().mlp.take_saturation(), Fp8Count::d_out), 0.2);
  const Fp8Saturation qkv = f.model.fp8_scales().qkv.take_saturation();
  EXPECT_GT(share(qkv, Fp8Count::d_values), 0.2);
  EXPECT_GT(share(qkv, Fp8Count::d_out), 0);
}

/// The scale of QKV's gradient belongs to the product with the factor of the values: halving the factor and doubling
/// the weights of the values changes what is quantised by no bit, and halves the gradient of these weights.
TEST(ModelFp8, FactorsOfValuesDoNotMoveWhatSaturates) {
  Config config = with(record89(), {}, fixed_e4m3);
  config.model.norm_eps = 1e-12;
  Fixture f(config), scaled(config);
  for (Fixture* fixture : {&f, &scaled}) fixture->disturb();
  const int width = config.model.width;
  const Parameter& qkv = scaled.table.find("block.1.qkv");
  // The whole matrix: queries and keys are normed, so that their length does not matter but for eps.
  for (std::size_t i = 0; i < qkv.size(); ++i) scaled.weight(qkv, i) *= 2;
  const Parameter& factors = scaled.table.find("block.1.attention_factors");
  scaled.weight(factors, 0) /= 2;
  for (Fixture* fixture : {&f, &scaled}) {
    fixture->forward_backward(128);
  }
  double difference = 0, norm = 0;
  for (std::size_t i = 2 * width * width; i < qkv.size(); ++i) {
    difference += std::pow(2 * scaled.gradient(qkv, i) - f.gradient(qkv, i), 2);
    norm += std::pow(f.gradient(qkv, i), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(difference, 1e-4 * norm);
}

}  // namespace
}  // namespace nanorun
