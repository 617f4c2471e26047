#include "src/model/fp8_scales.hpp"

#include <gtest/gtest.h>

#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

using kernels::Mat;

Config record89_mlp() {
  Config config;
  config.model.layers = 2;
  config.train.mlp_precision = MlpPrecision::fp8;
  return config;
}

/// Matrices whose largest magnitudes are given.
struct Operands {
  double n, w_in, w_out;
};

struct OwnConfig {
  Config config;
};

/// Scales of two layers, driven as by a model; maxima are read where the tensors lie, in host memory.
struct Scales : OwnConfig, Fp8ProductScales<double> {
  explicit Scales(const Config& config = record89_mlp(), Fp8Product product = Fp8Product::mlp)
      : OwnConfig{config}, Fp8ProductScales(OwnConfig::config, product, Mode::training, {}) {}

  void sequence(long step, Operands largest, double largest_h = 0, double largest_d_hidden = 0) {
    begin_sequence(step);
    const double w_in[] = {-largest.w_in, 0, 0, -2 * largest.w_in}, w_out[] = {largest.w_out, 2 * largest.w_out};
    const Matrices matrices[] = {{Mat(w_in, 2, 1), Mat(w_out, 1, 1)}, {Mat(w_in + 2, 1, 2), Mat(w_out + 1, 1, 1)}};
    if (steps_begun() != measured_) {
      measure(0, std::span(matrices).first(1));
      measure(1, std::span(matrices).last(1));
    }
    measured_ = steps_begun();
    for (int layer = 0; layer < 2; ++layer) {
      const double factor = layer + 1;
      if (double* const n = largest_input(layer)) *n = std::max(*n, factor * largest.n);
      *of(layer).largest_d_hidden = std::max(*of(layer).largest_d_hidden, factor * largest_d_hidden);
      *of(layer).largest_h = std::max(*of(layer).largest_h, factor * largest_h);
    }
  }
  void end_step() {
    collect();
    share(test_comm());
  }

 private:
  long measured_ = -1;
};

void expect_scale(const Fp8ProductScales<double>::Scale& scale, double maximum, double margin) {
  EXPECT_EQ(*scale.maximum, maximum);
  EXPECT_EQ(scale.margin, margin);
}

TEST(Fp8Rules, TheHeadAndTheProductsCountAsTrainingInFp8) {
  Config none;
  none.head.precision = LmHeadChoice::bf16;
  EXPECT_FALSE(trains_in_fp8(none));
  Config head = none, forward = none, mlp = none, qkv = none;
  head.head.precision = LmHeadChoice::fp8;
  forward.train.mlp_precision = MlpPrecision::fp8;
  mlp.fp8.mlp.forward = qkv.fp8.qkv.forward = Fp8Forward::e4m3;
  for (const Config& config : {head, forward, mlp, qkv}) {
    EXPECT_TRUE(trains_in_fp8(config));
    EXPECT_FALSE(trains_in_fp8(without_fp8(config)));
    EXPECT_EQ(lacks_fp8(config), !ops::has_fp8());
    if (lacks_fp8(config)) {
      EXPECT_EQ(fp8_kernels(config, 0), "bf16");
    }
    EXPECT_EQ(fp8_kernels(without_fp8(config), 0), "");
  }
}

TEST(Fp8Scales, InputsAreOfTheSequenceAndWeightsOfTheStep) {
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

TEST(Fp8Scales, HiddenUnitsAreThoseOfAllSequencesOfTheStepBefore) {
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

TEST(Fp8Scales, WeightsOfSeveralLayersAreMeasuredAtOnce) {
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

TEST(Fp8Scales, WeightsCanBeMeasuredAgain) {
  Scales scales;
  scales.begin_sequence(0);
  for (const double value : {-5.0, 3.0}) {
    const Scales::Matrices matrices[] = {{Mat(&value, 1, 1), Mat(&value, 1, 1)}};
    scales.measure(1, matrices);
    expect_scale(scales.of(1).w_in, std::abs(value), 1);
    expect_scale(scales.of(1).w_out, std::abs(value), 1);
  }
}

/// Update 16 is the first whose weights are scaled by those before it: they serve step 17.
TEST(Fp8Scales, OutputWeightsAreDelayedFromStep17) {
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

TEST(Fp8Scales, StateContinuesARun) {
  Scales whole;
  EXPECT_TRUE(whole.state().empty());
  for (long step = 0; step < 18; ++step) {
    whole.sequence(step, {1, 1, 100.0 + step}, 10.0 + step);
    whole.end_step();
  }
  const std::vector<double> state = whole.state();
  EXPECT_EQ(state, (std::vector<double>{0, 0, 27, 54, 0, 0, 0, 0, 117, 234}));
  Scales again;
  EXPECT_TRUE(again.restore(18, state));
  EXPECT_EQ(again.state(), state);
  for (Scales* scales : {&whole, &again}) {
    scales->sequence(18, {1, 1, 1});
    expect_scale(scales->of(1).h, 54, 1.8);
    expect_scale(scales->of(1).w_out, 234, 1.12);
  }
  EXPECT_FALSE(again.restore(18, std::vector<double>(15)));
}

/// The checkpoint was written without a state of the scales.
TEST(Fp8Scales, WithoutStateTheyBeginAnew) {
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

TEST(Fp8Scales, AreNothingWhereTheProductIsNotQuantised) {
  for (const Fp8Product product : {Fp8Product::mlp, Fp8Product::qkv}) {
    EXPECT_FALSE(Fp8ProductScales<double>(Config{}, product, Mode::training, {}));
    EXPECT_FALSE(Fp8ProductScales<double>(record89_mlp(), product, Mode::evaluation, {}));
  }
  EXPECT_FALSE(Fp8ProductScales<double>(record89_mlp(), Fp8Product::qkv, Mode::training, {}));
  Fp8ProductScales<double> none(Config{}, Fp8Product::mlp, Mode::training, {});
  none.begin_sequence(0);
  none.collect();
  none.share(test_comm());
  EXPECT_TRUE(none.state().empty());
  EXPECT_TRUE(none.restore(3, std::vector<double>(10)));  // from a run that quantised
}

/// The rules of pull request 349.
Config fixed_mlp() {
  Config config;
  config.model.layers = 2;
  config.model.width = 768;
  config.train.loss = LossSum::sum;
  config.fp8.mlp = {Fp8Forward::e4m3, Fp8Gradient::e5m2, Fp8Scales::fixed, Fp8WeightScales::delayed, 0, 1.0 / 64, 1.03};
  return config;
}

/// The rules of pull request 344.
Config delayed_mlp() {
  Config config = fixed_mlp();
  config.fp8.mlp = {Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::delayed, Fp8WeightScales::exact, 0, 0, 1.25};
  return config;
}

TEST(Fp8Scales, FixedOnesStay) {
  Scales scales(fixed_mlp());
  for (long step = 0; step < 3; ++step) {
    scales.sequence(step, {99, 1, 1}, 5, 7);
    EXPECT_EQ(scales.largest_input(0), nullptr);
    EXPECT_EQ(scales.largest_d_out(0), nullptr);
    EXPECT_EQ(scales.of(1).n.value(), 1.0 / 16);  // no norm of 768 elements has one above 28
    EXPECT_EQ(scales.of(1).d_out.value(), 1.0 / 64);
    scales.end_step();
  }
  Config config = fixed_mlp();
  config.fp8.mlp.scale_x = 0.5;
  EXPECT_EQ(Scales(config).of(0).n.value(), 0.5);
}

/// h and d_z begin with scales of 16/448 and 1/64. A step that finds zeros alone keeps what was.
TEST(Fp8Scales, HiddenScalesFollowTheStepBefore) {
  for (const auto& [config, largest] : {std::pair{fixed_mlp(), 57344.0}, {delayed_mlp(), 448.0}}) {
    const double margin = config.fp8.mlp.margin;
    Scales scales(config);
    const auto expect = [&](double h, double d_hidden) {
      EXPECT_NEAR(scales.of(1).h.value(), h, 1e-6 * h);
      EXPECT_NEAR(scales.of(1).d_hidden.value(), d_hidden, 1e-6 * d_hidden);
    };
    scales.sequence(0, {1, 1, 1});
    expect(16.0 / 448, 1.0 / 64);
    scales.end_step();
    scales.sequence(1, {1, 1, 1}, 3, 0.5);
    expect(16.0 / 448, 1.0 / 64);
    scales.sequence(1, {1, 1, 1}, 4, 0.25);
    scales.end_step();
    scales.sequence(2, {1, 1, 1});
    expect(margin * 8 / 448, 1.25 * 1 / largest);
    scales.end_step();
    scales.sequence(3, {1, 1, 1});
    expect(margin * 8 / 448, 1.25 * 1 / largest);
  }
}

TEST(Fp8Scales, InputsMayFollowTheStepBefore) {
  Scales scales(delayed_mlp());
  scales.sequence(0, {3, 1, 1});
  EXPECT_NEAR(scales.of(1).n.value(), 8.0 / 448, 1e-9);
  scales.end_step();
  scales.sequence(1, {2, 1, 1});
  EXPECT_NEAR(scales.of(1).n.value(), 1.25 * 6 / 448, 1e-8);
  // The gradient's scale is its own.
  *scales.largest_d_out(1) = 7;
  const double factor = -0.5;
  auto d_out = scales.of(1).d_out;
  EXPECT_NEAR(d_out.value(), 7.0 / 448, 1e-9);
  d_out.factor = &factor;
  EXPECT_NEAR(d_out.value(), 3.5 / 448, 1e-9);
  scales.sequence(1, {2, 1, 1});
  EXPECT_EQ(*scales.largest_d_out(1), 0);
}

/// The first 16 steps have exact scales.
TEST(Fp8Scales, BothWeightsMayBeDelayed) {
  Scales scales(fixed_mlp());
  for (long step = 0; step < 19; ++step) {
    scales.sequence(step, {1, 10.0 + step, 100.0 + step});
    const bool delayed = step >= 16;
    expect_scale(scales.of(1).w_in, 2 * (10.0 + step - delayed), delayed ? 1.12 : 1);
    expect_scale(scales.of(1).w_out, 2 * (100.0 + step - delayed), delayed ? 1.12 : 1);
    scales.end_step();
  }
}

/// With the mean of the losses, gradients are smaller by the number of tokens, which stages change.
TEST(Fp8Scales, GradientsOfAMeanHaveScalesByTheTokens) {
  Config config = fixed_mlp();
  config.train.loss = LossSum::mean;
  config.train.steps = 4;
  config.stage.resize(2);
  config.stage[0].share = config.stage[1].share = 0.5;
  config.stage[0].length = 256;
  config.stage[1].length = 128;
  Scales scales(config);
  scales.sequence(0, {1, 1, 1}, 1, 0);
  EXPECT_EQ(scales.of(0).d_out.value(), 1.0 / 64 / 256);
  EXPECT_NEAR(scales.of(0).d_hidden.value(), 1.0 / 64 / 256, 1e-10);
  scales.end_step();
  scales.sequence(1, {1, 1, 1}, 1, 1.0 / 256);
  EXPECT_NEAR(scales.of(0).d_hidden.value(), 1.0 / 64 / 256, 1e-10);
  scales.end_step();
  scales.sequence(2, {1, 1, 1}, 1, 1.0 / 128);
  EXPECT_EQ(scales.of(0).d_out.value(), 1.0 / 64 / 128);
  EXPECT_NEAR(scales.of(0).d_hidden.value(), 1.25 / 128 / 57344, 1e-12);
}

void expect_same_scales(const Scales& a, const Scales& b) {
  for (int layer = 0; layer < 2; ++layer) {
    const auto x = a.of(layer), y = b.of(layer);
    EXPECT_EQ(x.n.value(), y.n.value());
    EXPECT_EQ(x.h.value(), y.h.value());
    EXPECT_EQ(x.w_in.value(), y.w_in.value());
    EXPECT_EQ(x.w_out.value(), y.w_out.value());
    EXPECT_EQ(x.d_out.value(), y.d_out.value());
    EXPECT_EQ(x.d_hidden.value(), y.d_hidden.value());
  }
}

TEST(Fp8Scales, StateOfBothPassesContinuesARun) {
  for (Config config : {fixed_mlp(), delayed_mlp()}) {
    config.train.loss = LossSum::mean;
    for (const long stop : {1L, 3L, 18L}) {
      Scales whole(config), again(config);
      const auto step = [](Scales& scales, long i) {
        // The gradients of step 0 are zeros.
        scales.sequence(i, {2.0 + i, 10.0 + i, i == 0 ? 0 : 100.0 + i}, 3.0 + i, 0.25 * i);
      };
      for (long i = 0; i < stop; ++i) {
        step(whole, i);
        whole.end_step();
      }
      const std::vector<double> state = whole.state();
      EXPECT_EQ(state.size(), 10u);
      EXPECT_TRUE(again.restore(stop, state));
      EXPECT_EQ(again.state(), state) << stop;
      for (long i = stop; i < stop + 2; ++i) {
        for (Scales* scales : {&whole, &again}) step(*scales, i);
        expect_same_scales(whole, again);
        for (Scales* scales : {&whole, &again}) scales->end_step();
      }
    }
  }
}

/// A state of other rules gives the rows that it has.
TEST(Fp8Scales, RowsThatAStateLacksBeginAnew) {
  Scales delayed(delayed_mlp()), fixed(fixed_mlp());
  delayed.sequence(0, {2, 3, 4}, 5, 6);
  delayed.end_step();
  EXPECT_TRUE(fixed.restore(1, delayed.state()));
  fixed.sequence(1, {2, 3, 4});
  EXPECT_NEAR(fixed.of(0).h.value(), 1.03 * 5 / 448, 1e-8);
  EXPECT_NEAR(fixed.of(0).d_hidden.value(), 1.25 * 6 / 57344, 1e-9);
  expect_scale(fixed.of(0).w_in, 3, 1);
  EXPECT_TRUE(fixed.restore(1, std::vector<double>(10)));
  fixed.sequence(1, {2, 3, 4});
  EXPECT_NEAR(fixed.of(0).h.value(), 16.0 / 448, 1e-8);
}

TEST(Fp8Scales, QkvHasExactWeightsAndNoHiddenUnits) {
  Config config = fixed_mlp();
  config.fp8.mlp = {};
  config.fp8.qkv = {Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::fixed, Fp8WeightScales::exact, 0, 1.0 / 448, 1.25};
  Scales scales(config, Fp8Product::qkv);
  scales.sequence(0, {1, 5, 0});
  scales.end_step();
  EXPECT_TRUE(scales.state().empty()) << "nothing outlives a step";
  scales.sequence(1, {1, 6, 0});
  expect_scale(scales.of(0).w_in, 6, 1);
  EXPECT_FLOAT_EQ(scales.of(0).d_out.value(), 1.0f / 448);
}

TEST(Fp8Scales, SharesOfWhatSaturates) {
  Scales scales(fixed_mlp());
  for (long step = 0; step < 2; ++step) {
    scales.sequence(step, {1, 1, 1});
    *scales.count(Fp8Count::hidden, 100) += 3;
    scales.count(Fp8Count::d_out, 50);
    scales.end_step();
  }
  const Fp8Saturation counted = scales.take_saturation();
  EXPECT_EQ(counted.saturated[static_cast<std::size_t>(Fp8Count::hidden)], 6);
  EXPECT_EQ(counted.all[static_cast<std::size_t>(Fp8Count::hidden)], 200);
  EXPECT_EQ(counted.saturated[static_cast<std::size_t>(Fp8Count::d_out)], 0);
  EXPECT_EQ(counted.all[static_cast<std::size_t>(Fp8Count::d_out)], 100);
  EXPECT_EQ(scales.take_saturation().all, Fp8Saturation().all);
}

/// Checkpoints of train.mlp_precision = "fp8" hold two rows.
TEST(Fp8Scales, TwoRowsAreAState) {
  using Both = Fp8ScalesOf<double>;
  const std::vector<double> rows{1, 2, 3, 4}, state = Both::state_of(rows);
  EXPECT_EQ(state.size(), 20u);
  EXPECT_EQ(Both::two_rows(state), rows);
  const Config config = record89_mlp();
  Both scales(config, Mode::training, {});
  EXPECT_TRUE(scales.keeps_two_rows());
  EXPECT_TRUE(scales.restore(20, state));
  EXPECT_EQ(Both::two_rows(scales.state()), rows);
  const Config later = fixed_mlp();
  EXPECT_FALSE(Both(later, Mode::training, {}).keeps_two_rows());
  EXPECT_FALSE(scales.restore(20, std::vector<double>(12)));
}

}  // namespace
}  // namespace nanorun
