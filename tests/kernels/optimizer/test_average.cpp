#include "kernels/optimizer/average.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::size_t n = 20'011;  // more than one chunk, with a remainder

TEST(Average, IsItsFirstSampleWhateverItHeldBefore) {
  const test::Vector<double> w = test::random_values(n, 1);
  test::Vector<double> average(n, std::numeric_limits<double>::quiet_NaN());
  average_weights<double>({}, average, w, 1);
  EXPECT_EQ(average, w);
}

TEST(Average, MovesTowardsEachSample) {
  const test::Vector<double> first = test::random_values(n, 1), second = test::random_values(n, 2);
  test::Vector<double> average = first;
  average_weights<double>({}, average, second, 0.25);
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(average[i], 0.75 * first[i] + 0.25 * second[i], 1e-15);
}

TEST(Average, IsBlendedIntoTheWeights) {
  const test::Vector<double> w = test::random_values(n, 1), average = test::random_values(n, 2);
  for (const double blend : {0.0, 0.35, 1.0}) {
    test::Vector<double> blended = w;
    blend_average<double>({}, blended, average, blend);
    for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(blended[i], (1 - blend) * w[i] + blend * average[i], 1e-15);
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
