#include "kernels/adam.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/check.hpp"

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
      if (u * w[i] > 0) w[i] -= o.decay * w[i];
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
    const test::Vector<T> g = test::convert<T>(test::random_values(n, 100 + t, -7e-3, 7e-3));
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
}

TEST(Adam, OnlyWeightsThatTheUpdateShrinksDecay) {
  test::Vector<double> w{1, -1, 1, -1, 1, 0}, m(6), v(6);
  const test::Vector<double> g{3, -3, -3, 3, 0, 3};
  test::Vector<double> squares(2);
  adam_update<double>({}, w, w, m, v, g, {.lr = 0.25, .t = 1, .decay = 0.125}, squares.data());
  const test::Vector<double> expected{0.625, -0.625, 1.25, -1.25, 1, -0.25};
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], expected[i], 1e-8) << i;
  EXPECT_EQ(w[4], 1) << "without an update there is no decay";
}

TEST(Adam, FirstStepMovesByTheLearningRateAgainstTheGradient) {
  test::Vector<double> w{1, 1, 1}, m(3), v(3);
  const test::Vector<double> g{5, -0.01, 0};
  test::Vector<double> squares(2);
  adam_update<double>({}, w, w, m, v, g, {.lr = 0.25, .t = 1}, squares.data());
  EXPECT_NEAR(w[0], 0.75, 1e-8);
  EXPECT_NEAR(w[1], 1.25, 1e-8);
  EXPECT_EQ(w[2], 1);
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

TEST(Adam, SumsOfSquaresTellOfNumbersOutOfRange) {
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
