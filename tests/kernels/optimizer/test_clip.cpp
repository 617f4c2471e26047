#include "kernels/optimizer/clip.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::size_t n = 40'011;  // more than two chunks, with a remainder

double factor_of(const test::Vector<double>& squares, double c) {
  test::Vector<double> factor(1);
  clip_factor<double>({}, factor.data(), squares, c);
  return factor[0];
}

TEST(Clip, SquaresAreAddedInDouble) {
  const test::Vector<double> values = test::random_values(n, 1);
  const auto g = test::convert<float>(values);
  double expected = 0.25;
  test::Vector<double> sum{0.25}, again = sum;
  for (const float x : g) expected += 9.0 * x * x;
  add_squares<float>({}, sum.data(), g, 3);
  EXPECT_NEAR(sum[0], expected, 1e-6 * expected);
  add_squares<float>({}, again.data(), g, 3);
  EXPECT_EQ(again, sum);
}

TEST(Clip, SquaresOfWhatIsNotFiniteAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    test::Vector<float> g(n, 1.0f);
    g[n / 2] = bad;
    test::Vector<double> sum(1);
    add_squares<float>({}, sum.data(), g, 1);
    EXPECT_FALSE(std::isfinite(sum[0]));
  }
}

TEST(Clip, TheFactorBringsTheNormOfAllPartsToTheLimit) {
  EXPECT_DOUBLE_EQ(factor_of({9, 16}, 2), 0.4);
  EXPECT_EQ(factor_of({9, 16}, 5), 1);
  EXPECT_EQ(factor_of({9, 16}, 6), 1);
  EXPECT_EQ(factor_of({0, 0}, 1), 1);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(factor_of({1, bad}, 0.5), 1);
}

TEST(Clip, GradientsAreScaledByTheFactor) {
  const test::Vector<double> before = test::random_values(n, 1);
  test::Vector<double> g = before;
  const test::Vector<double> factors{1, 0.5};
  scale_gradients<double>({}, g, &factors[0]);
  EXPECT_EQ(g, before);
  scale_gradients<double>({}, g, &factors[1]);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(g[i], 0.5 * before[i]) << i;
}

}  // namespace
}  // namespace nanorun::kernels::portable
