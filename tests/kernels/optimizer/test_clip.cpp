#include "kernels/optimizer/clip.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::size_t n = 40'011;  // more than two chunks, with a remainder

double factor_of(const test::Vector<double>& squares, double c) {
  double factor = 0;
  clip_factor<double>({}, &factor, squares, c);
  return factor;
}

TEST(Clip, SquaresAreAddedInDouble) {
  const test::Vector<double> values = test::random_values(n, 1);
  const auto g = test::convert<float>(values);
  double expected = 0.25, sum = 0.25;
  for (const float x : g) expected += 9.0 * x * x;
  add_squares<float>({}, &sum, g, 3);
  EXPECT_NEAR(sum, expected, 1e-6 * expected);
  double again = 0.25;
  add_squares<float>({}, &again, g, 3);
  EXPECT_EQ(again, sum);
}

TEST(Clip, SquaresOfWhatIsNotFiniteAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    test::Vector<float> g(n, 1.0f);
    g[n / 2] = bad;
    double sum = 0;
    add_squares<float>({}, &sum, g, 1);
    EXPECT_FALSE(std::isfinite(sum));
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
  const double one = 1, half = 0.5;
  scale_gradients<double>({}, g, &one);
  EXPECT_EQ(g, before);
  scale_gradients<double>({}, g, &half);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(g[i], 0.5 * before[i]) << i;
}

}  // namespace
}  // namespace nanorun::kernels::portable
