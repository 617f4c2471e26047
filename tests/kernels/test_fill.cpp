#include "kernels/fill.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

TEST(Fill, WritesEveryElement) {
  test::Vector<float> x(40'001, -1.0f);
  fill<float>({}, x, 1.5);
  for (const float value : x) ASSERT_EQ(value, 1.5f);
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

}  // namespace
}  // namespace nanorun::kernels::portable
