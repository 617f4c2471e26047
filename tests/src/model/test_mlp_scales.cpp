#include "src/model/mlp_scales.hpp"

#include <gtest/gtest.h>

#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

using kernels::Mat;

Config fp8_config() {
  Config config;
  config.model.layers = 2;
  config.train.mlp_precision = MlpPrecision::fp8;
  return config;
}

/// Matrices whose largest magnitudes are given.
struct Operands {
  double n, w_in, w_out;
};

/// Scales of two layers, driven as by a model; maxima are read where the tensors lie, in host memory.
struct Scales : MlpScales<double> {
  Scales() : MlpScales(fp8_config(), Mode::training, {}) {}

  void sequence(long step, Operands largest, double largest_h = 0) {
    begin_sequence(step);
    const double w_in[] = {-largest.w_in, 0, 0, -2 * largest.w_in}, w_out[] = {largest.w_out, 2 * largest.w_out};
    const Matrices matrices[] = {{Mat(w_in, 2, 1), Mat(w_out, 1, 1)}, {Mat(w_in + 2, 1, 2), Mat(w_out + 1, 1, 1)}};
    measure(0, std::span(matrices).first(1));
    measure(1, std::span(matrices).last(1));
    for (int layer = 0; layer < 2; ++layer) {
      const double factor = layer + 1;
      *largest_n(layer) = std::max(*largest_n(layer), factor * largest.n);
      *of(layer).largest_h = std::max(*of(layer).largest_h, factor * largest_h);
    }
  }
  void end_step() {
    collect();
    share(test_comm());
  }
};

void expect_scale(const MlpScales<double>::Scale& scale, double maximum, double margin) {
  EXPECT_EQ(*scale.maximum, maximum);
  EXPECT_EQ(scale.margin, margin);
}

TEST(MlpScales, InputsAreOfTheSequenceAndWeightsOfTheStep) {
  Scales scales;
  scales.sequence(0, {3, 0.5, 0.25});
  scales.sequence(0, {2, 9, 9});  // the weights of a step do not change
  for (int layer = 0; layer < 2; ++layer) {
    expect_scale(scales.of(layer).n, 2 * (layer + 1), 1);
    expect_scale(scales.of(layer).w_in, 0.5 * (layer + 1), 1);
    expect_scale(scales.of(layer).w_out, 0.25 * (layer + 1), 1);
  }
  scales.end_step();
  scales.sequence(1, {1, 0.125, 0.0625});
  expect_scale(scales.of(1).w_in, 0.25, 1);
  expect_scale(scales.of(1).w_out, 0.125, 1);
}

TEST(MlpScales, HiddenUnitsAreThoseOfAllSequencesOfTheStepBefore) {
  Scales scales;
  scales.sequence(0, {1, 1, 1}, 50);
  expect_scale(scales.of(0).h, 448 / 1.8, 1.8);  // the scale is 1
  scales.sequence(0, {1, 1, 1}, 20);
  expect_scale(scales.of(0).h, 448 / 1.8, 1.8);
  scales.end_step();
  scales.sequence(1, {1, 1, 1}, 7);
  expect_scale(scales.of(0).h, 50, 1.8);
  expect_scale(scales.of(1).h, 100, 1.8);
  scales.end_step();
  scales.sequence(2, {1, 1, 1}, 3);
  expect_scale(scales.of(0).h, 7, 1.8);
}

TEST(MlpScales, WeightsOfSeveralLayersAreMeasuredAtOnce) {
  Scales scales;
  scales.begin_sequence(0);
  const double values[] = {-3, 5, -7, 9};
  const auto one = [&](int i) { return Mat(values + i, 1, 1); };
  const Scales::Matrices matrices[] = {{one(0), one(1)}, {one(2), one(3)}};
  scales.measure(0, matrices);
  for (int layer = 0; layer < 2; ++layer) {
    expect_scale(scales.of(layer).w_in, 3 + 4 * layer, 1);
    expect_scale(scales.of(layer).w_out, 5 + 4 * layer, 1);
  }
}

/// Update 16 is the first whose weights are scaled by those before it: they serve step 17.
TEST(MlpScales, OutputWeightsAreDelayedFromStep17) {
  Scales scales;
  for (long step = 0; step < 20; ++step) {
    scales.sequence(step, {1, 1, 100.0 + step});
    if (step < 17) {
      expect_scale(scales.of(1).w_out, 2 * (100.0 + step), 1);
    } else {
      expect_scale(scales.of(1).w_out, 2 * (100.0 + step - 1), 1.12);
    }
    expect_scale(scales.of(1).w_in, 2, 1);
    scales.end_step();
  }
}

TEST(MlpScales, StateContinuesARun) {
  Scales whole;
  EXPECT_TRUE(whole.state().empty());
  for (long step = 0; step < 18; ++step) {
    whole.sequence(step, {1, 1, 100.0 + step}, 10.0 + step);
    whole.end_step();
  }
  const std::vector<double> state = whole.state();
  EXPECT_EQ(state, (std::vector<double>{27, 54, 117, 234}));
  Scales again;
  EXPECT_TRUE(again.restore(18, state));
  EXPECT_EQ(again.state(), state);
  for (Scales* scales : {&whole, &again}) {
    scales->sequence(18, {1, 1, 1});
    expect_scale(scales->of(1).h, 54, 1.8);
    expect_scale(scales->of(1).w_out, 234, 1.12);
  }
  EXPECT_FALSE(again.restore(18, std::vector<double>(6)));
}

/// The checkpoint was written without a state of the scales.
TEST(MlpScales, WithoutStateTheyBeginAnew) {
  Scales scales;
  scales.sequence(29, {1, 1, 5}, 6);
  scales.end_step();
  EXPECT_TRUE(scales.restore(30, {}));
  EXPECT_TRUE(scales.state().empty());
  scales.sequence(30, {1, 1, 7});
  expect_scale(scales.of(0).h, 448 / 1.8, 1.8);
  expect_scale(scales.of(0).w_out, 7, 1);
  scales.end_step();
  scales.sequence(31, {1, 1, 8});
  expect_scale(scales.of(0).w_out, 7, 1.12);
}

TEST(MlpScales, AreNothingWhereTheMlpIsNotQuantised) {
  EXPECT_FALSE(MlpScales<double>(Config{}, Mode::training, {}));
  EXPECT_FALSE(MlpScales<double>(fp8_config(), Mode::evaluation, {}));
  MlpScales<double> none(Config{}, Mode::training, {});
  none.begin_sequence(0);
  none.collect();
  none.share(test_comm());
  EXPECT_TRUE(none.state().empty());
  EXPECT_TRUE(none.restore(3, std::vector<double>(4)));  // from a run that quantised
}

}  // namespace
}  // namespace nanorun
