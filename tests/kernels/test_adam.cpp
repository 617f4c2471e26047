#include "kernels/adam.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::size_t n = 20'011;  // more than one chunk, with a remainder

/// The published formula, one element at a time.
struct Reference {
  std::vector<double> w, m, v;

  void step(const std::vector<double>& g, const AdamOptions& o) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * std::pow(g[i], 2);
      const double m_hat = m[i] / (1 - std::pow(o.beta1, o.t));
      const double v_hat = v[i] / (1 - std::pow(o.beta2, o.t));
      w[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

/// Largest of the relative errors of w, m and v after seven steps of changing learning rate.
template <class T>
double error_after_seven_steps(double eps) {
  const std::vector<double> start = test::random_values(n, 1);
  Reference reference{start, std::vector<double>(n), std::vector<double>(n)};
  std::vector<T> w = test::convert<T>(start), m(n), v(n);
  for (int t = 1; t <= 7; ++t) {
    const AdamOptions options{.lr = 0.6 / t, .beta1 = 0.8, .beta2 = 0.95, .eps = eps, .t = t};
    const std::vector<T> g = test::convert<T>(test::random_values(n, 100 + t, -1e-3, 1e-3));
    adam_update<T>({}, w, m, v, g, options);
    reference.step(test::convert<double>(g), options);
  }
  return std::max({test::relative_error(w, reference.w), test::relative_error(m, reference.m),
                   test::relative_error(v, reference.v)});
}

TEST(Adam, FollowsTheFormulaOverSeveralSteps) {
  EXPECT_LT(error_after_seven_steps<double>(1e-10), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>(1e-10), 1e-6);
}

TEST(Adam, EpsStandsOutsideTheRootOfTheCorrectedMoment) {
  EXPECT_LT(error_after_seven_steps<double>(1e-3), 1e-14);
  EXPECT_LT(error_after_seven_steps<float>(1e-3), 1e-6);
}

TEST(Adam, FirstStepMovesByTheLearningRateAgainstTheGradient) {
  std::vector<double> w{1, 1, 1}, m(3), v(3);
  const std::vector<double> g{5, -0.01, 0};
  adam_update<double>({}, w, m, v, g, {.lr = 0.25, .t = 1});
  EXPECT_NEAR(w[0], 0.75, 1e-8);
  EXPECT_NEAR(w[1], 1.25, 1e-8);
  EXPECT_EQ(w[2], 1);
}

}  // namespace
}  // namespace nanorun::kernels::portable
