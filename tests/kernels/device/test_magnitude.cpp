#include "kernels/device/magnitude.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

TEST(MaxMagnitude, KeepsTheLargestOfAllCalls) {
  test::Vector<float> x = test::convert<float>(test::random_values(9 * 8, 4));
  test::Vector<float> maximum(1);
  const Mat<const float> matrix(x.data(), 9, 5, 8);
  const auto measure = [&] { max_magnitude<float>({}, std::vector<Magnitude<float>>{{maximum.data(), matrix}}); };
  x[3 * 8 + 4] = -3;
  x[6] = 100;  // between the rows
  measure();
  EXPECT_EQ(maximum[0], 3);
  x[3 * 8 + 4] = 2;
  measure();
  EXPECT_EQ(maximum[0], 3);
  x[8 * 8] = 4;
  measure();
  EXPECT_EQ(maximum[0], 4);
}

TEST(MaxMagnitude, EachMatrixRaisesItsOwn) {
  const test::Vector<float> x{1, -2, 3, -4, 5, std::numeric_limits<float>::quiet_NaN()};
  test::Vector<float> maxima{1.5f, 9, 0};
  const auto at = [&](int first, int cols) { return Mat(x.data() + first, 1, cols); };
  max_magnitude<float>(
      {}, std::vector<Magnitude<float>>{{&maxima[0], at(0, 2)}, {&maxima[1], at(2, 2)}, {&maxima[2], at(4, 2)}});
  EXPECT_EQ(maxima, (test::Vector<float>{2, 9, 5}));
  max_magnitude<float>({}, {});
}

}  // namespace
}  // namespace nanorun::kernels::portable
