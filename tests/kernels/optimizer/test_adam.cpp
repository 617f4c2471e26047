#include "kernels/optimizer/adam.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::size_t n = 20'011;  // more than one chunk, with a remainder

/// The published formula, one element at a time.
struct Reference {
  test::Vector<double> w, m, v;
  long double gradient_squares = 0, weight_squares = 0;

  void step(const test::Vector<double>& g, const AdamOptions& o) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double gradient = o.gradient_scale * g[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gradient;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * std::pow(gradient, 2);
      const double correction1 = 1 - std::pow(o.beta1, o.t), correction2 = 1 - std::pow(o.beta2, o.t);
      const double u = o.epsilon_hat ? o.lr * std::sqrt(correction2) / correction1 * m[i] / (std::sqrt(v[i]) + o.eps)
                                     : o.lr * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + o.eps);
      if (!o.cautious || u * w[i] > 0) w[i] -= o.decay * w[i];
      w[i] -= u;
      gradient_squares += std::pow(gradient, 2);
      weight_squares += std::pow(w[i], 2);
    }
  }
};

/// Largest of the relative errors of w, m, v and the sums of squares after seven steps of changing learning rate.
template <class T>
double error_after_seven_steps(AdamOptions options) {
  const test::Vector<double> start = test::random_values(n, 1);
  Reference reference{start, test::Vector<double>(n), test::Vector<double>(n)};
  test::Vector<T> w = test::convert<T>(start), m(n), v(n);
  test::Vector<double> squares(2);
  for (int t = 1; t <= 7; ++t) {
    options.lr = 0.6 / t;
    options.t = t;
    options.gradient_scale = 1.0 / 7;
    test::Vector<T> g = test::convert<T>(test::random_values(n, 100 + t, -7e-3, 7e-3));
    adam_update<T>({}, w, w, m, v, g, options, squares.data());
    reference.step(test::convert<double>(g), options);
  }
  return std::max({test::relative_error(w, reference.w), test::relative_error(m, reference.m),
                   test::relative_error(v, reference.v),
                   std::abs(squares[0] / static_cast<double>(reference.gradient_squares) - 1),
                   std::abs(squares[1] / static_cast<double>(reference.weight_squares) - 1)});
}

TEST(Adam, FollowsTheFormulaOverSeveralSteps) {
  EXPECT_LT(error_after_seven_steps<double>({.eps = 1e-10}), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>({.eps = 1e-10}), 1e-6);
}

TEST(Adam, EpsStandsOutsideTheRootOfTheCorrectedMoment) {
  EXPECT_LT(error_after_seven_steps<double>({.eps = 1e-3}), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>({.eps = 1e-3}), 1e-6);
}

TEST(Adam, EpsMayStandBesideTheRootOfTheMomentItself) {
  EXPECT_LT(error_after_seven_steps<double>({.eps = 1e-3, .epsilon_hat = true}), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>({.eps = 1e-3, .epsilon_hat = true}), 1e-6);
}

TEST(Adam, DecayFollowsTheFormulaOverSeveralSteps) {
  EXPECT_LT(error_after_seven_steps<double>({.decay = 0.01}), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>({.decay = 0.01}), 1e-6);
  EXPECT_LT(error_after_seven_steps<double>({.decay = 0.01, .cautious = false}), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>({.decay = 0.01, .cautious = false}), 1e-6);
}

TEST(Adam, OnlyWeightsThatTheUpdateShrinksDecay) {
  test::Vector<double> w{1, -1, 1, -1, 1, 0}, m(6), v(6);
  test::Vector<double> g{3, -3, -3, 3, 0, 3};
  test::Vector<double> squares(2);
  adam_update<double>({}, w, w, m, v, g, {.lr = 0.25, .t = 1, .decay = 0.125}, squares.data());
  const test::Vector<double> expected{0.625, -0.625, 1.25, -1.25, 1, -0.25};
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], expected[i], 1e-8) << i;
  EXPECT_EQ(w[4], 1) << "without an update there is no decay";
}

TEST(Adam, PlainDecayActsOnEveryWeight) {
  test::Vector<double> w{1, -1, 1, -1, 1, 0}, m(6), v(6);
  test::Vector<double> g{3, -3, -3, 3, 0, 3};
  test::Vector<double> squares(2);
  adam_update<double>({}, w, w, m, v, g, {.lr = 0.25, .t = 1, .decay = 0.125, .cautious = false}, squares.data());
  const test::Vector<double> expected{0.625, -0.625, 1.125, -1.125, 0.875, -0.25};
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], expected[i], 1e-8) << i;
}

TEST(Adam, FirstStepMovesByTheLearningRateAgainstTheGradient) {
  test::Vector<double> w{1, 1, 1}, m(3), v(3);
  test::Vector<double> g{5, -0.01, 0};
  test::Vector<double> squares(2);
  adam_update<double>({}, w, w, m, v, g, {.lr = 0.25, .t = 1}, squares.data());
  EXPECT_NEAR(w[0], 0.75, 1e-8);
  EXPECT_NEAR(w[1], 1.25, 1e-8);
  EXPECT_EQ(w[2], 1);
}

TEST(Adam, ClearsTheGradientWhereThatIsAsked) {
  for (const bool clears : {false, true}) {
    test::Vector<double> w{1, 1, 1}, m(3), v(3), g{5, 0, -1};
    const test::Vector<double> kept = clears ? test::Vector<double>(3) : g;
    test::Vector<double> squares(2);
    adam_update<double>({}, w, w, m, v, g, {.lr = 0.25, .t = 1, .clears_gradient = clears}, squares.data());
    EXPECT_EQ(g, kept);
    EXPECT_NEAR(w[0], 0.75, 1e-8);
    EXPECT_EQ(squares[0], 26);
  }
}

bool is_bf16(float x) { return round_to_bf16(x) == x; }

/// One update rounds what it stores and nothing else: rounded alone, each differs from an exact update by the rounding.
TEST(Adam, RoundsWhatItStores) {
  const test::Vector<float> start = test::convert<float>(test::random_values(n, 1)),
                            past = test::convert<float>(test::random_values(n, 3, 1e-3, 1e-2));
  test::Vector<float> g = test::convert<float>(test::random_values(n, 2, -1e-2, 1e-2));
  struct Result {
    test::Vector<float> w, m, v;
    test::Vector<double> squares = test::Vector<double>(2);
  };
  enum class Rounds { nothing, weights, both };
  const auto update = [&](Rounds rounds) {
    Result r{start, past, past};
    const AdamOptions options{.lr = 0.01,
                              .t = 3,
                              .decay = 0.02,
                              .round_weights = rounds != Rounds::nothing,
                              .round_moments = rounds == Rounds::both};
    adam_update<float>({}, r.w, r.w, r.m, r.v, g, options, r.squares.data());
    return r;
  };
  const Result exact = update(Rounds::nothing), weights = update(Rounds::weights), both = update(Rounds::both);
  EXPECT_EQ(weights.m, exact.m);
  EXPECT_EQ(weights.v, exact.v);
  EXPECT_EQ(both.w, weights.w) << "the update is formed from moments before they are rounded";
  double squares = 0;
  int inexact = 0;
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(both.w[i], round_to_bf16(exact.w[i])) << i;
    ASSERT_EQ(both.m[i], round_to_bf16(exact.m[i])) << i;
    ASSERT_EQ(both.v[i], round_to_bf16(exact.v[i])) << i;
    inexact += !is_bf16(exact.w[i]) && !is_bf16(exact.m[i]) && !is_bf16(exact.v[i]);
    squares += static_cast<double>(both.w[i]) * both.w[i];
  }
  EXPECT_GT(inexact, 19'000);
  EXPECT_NEAR(both.squares[1], squares, 1e-9 * squares) << "of the weights as they are stored";
}

TEST(Adam, UpdatesBelowHalfTheSpacingOfBf16AreLost) {
  test::Vector<float> w{1, 1}, m(2), v(2);
  test::Vector<float> g{-1, -1};  // each update adds lr; the next bf16 is 1 + 2^-7, and ties go to 1
  test::Vector<double> squares(2);
  for (int t = 1; t <= 5; ++t) {
    const AdamOptions options{.lr = 0x1p-9, .eps = 1e-30, .t = t, .round_weights = true};
    adam_update<float>({}, Vec<float>(w).first(1), Vec<float>(w).first(1), Vec<float>(m).first(1),
                       Vec<float>(v).first(1), Vec<float>(g).first(1), options, squares.data());
  }
  const AdamOptions larger{.lr = 0x1.2p-8, .eps = 1e-30, .t = 1, .round_weights = true};
  adam_update<float>({}, Vec<float>(w).last(1), Vec<float>(w).last(1), Vec<float>(m).last(1), Vec<float>(v).last(1),
                     Vec<float>(g).last(1), larger, squares.data());
  EXPECT_EQ(w[0], 1);
  EXPECT_EQ(w[1], 1 + 0x1p-7f);
}

/// The sums of squares, together, of one update whose last gradient and weight are these, all others small.
double squares_with(float gradient, float weight) {
  test::Vector<float> w(n, 1), m(n), v(n), g(n, 0.5f);
  g.back() = gradient;
  w.back() = weight;
  test::Vector<double> squares(2);
  adam_update<float>({}, w, w, m, v, g, {.lr = 0.25, .t = 1, .gradient_scale = 4}, squares.data());
  return squares[0] + squares[1];
}

TEST(Adam, NonFiniteGradientOrWeightIsDetected) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_LT(squares_with(1, 1), 5 * n);
  EXPECT_NEAR(squares_with(0x1p100f, 0), 0x1p204, 0x1p180) << "beyond the range of a float's square";
  EXPECT_FALSE(std::isfinite(squares_with(0x1p127f, 1))) << "the scaled gradient overflows";
  EXPECT_FALSE(std::isfinite(squares_with(nan, 1)));
  EXPECT_FALSE(std::isfinite(squares_with(1, infinity)));
  EXPECT_FALSE(std::isfinite(squares_with(1, nan)));
}

}  // namespace
}  // namespace nanorun::kernels::portable
