#include "kernels/fill.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nanorun::kernels::portable {
namespace {

TEST(Fill, WritesEveryElementAndScales) {
  std::vector<float> x(40'001, -1.0f);
  fill<float>({}, x, 3.0);
  scale<float>({}, x, 0.5);
  for (const float value : x) ASSERT_EQ(value, 1.5f);
  EXPECT_DOUBLE_EQ(sum_of_squares<float>({}, x), 2.25 * 40'001);
}

}  // namespace
}  // namespace nanorun::kernels::portable
