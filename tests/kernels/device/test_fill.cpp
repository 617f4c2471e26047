#include "kernels/device/fill.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

TEST(Fill, WritesEveryElement) {
  test::Vector<float> x(40'001, -1.0f);
  fill<float>({}, x, 1.5);
  for (const float value : x) ASSERT_EQ(value, 1.5f);
}

TEST(MoveSum, AddsAndLeavesZeros) {
  test::Vector<double> out{1, 2, 3}, x{4, 0, -5};
  move_sum<double>({}, out, x);
  EXPECT_EQ(out, (test::Vector<double>{5, 2, -2}));
  EXPECT_EQ(x, (test::Vector<double>{0, 0, 0}));
}

TEST(RoundTo, CopiesWhereNothingIsToBeRounded) {
  test::Vector<float> x(20'011);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 3;
  test::Vector<float> out = test::poisoned<float>(x.size());
  round_to<float>({}, out, x);
  EXPECT_EQ(out, x);
  round_to<float>({}, out, out);
  EXPECT_EQ(out, x);
}

TEST(RoundAsBf16, RoundsToNearestEven) {
  // Between 1 and its successor 1 + 2^-7, and that one's; the largest float rounds to infinity.
  test::Vector<float> x{1 + 0x1p-8f, 1 + 0x1.8p-7f, 1 + 0x1.02p-8f, -2.5f, std::numeric_limits<float>::max()};
  const test::Vector<float> expected{1, 1 + 0x1p-6f, 1 + 0x1p-7f, -2.5f, std::numeric_limits<float>::infinity()};
  test::Vector<double> doubles(x.begin(), x.end());
  round_as_bf16<float>({}, x);
  round_as_bf16<double>({}, doubles);
  EXPECT_EQ(x, expected);
  EXPECT_EQ(test::Vector<float>(doubles.begin(), doubles.end()), expected);
}

}  // namespace
}  // namespace nanorun::kernels::portable
