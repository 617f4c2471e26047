#include "kernels/linear/bias.hpp"

#include <gtest/gtest.h>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr int rows = 9, cols = 37;

template <class T>
Values with_bias(const Values& values, const Values& bias) {
  Strided<T> out(rows, cols, values);
  const test::Vector<T> b = test::convert<T>(bias);
  add_bias<T>({}, out.mat(), b);
  return out.dense();
}

TEST(Bias, IsAddedToEveryRow) {
  const Values x = test::random_values(rows * cols, 1), b = test::random_values(cols, 2),
               result = with_bias<double>(x, b);
  for (int i = 0; i < rows * cols; ++i) EXPECT_EQ(result[i], x[i] + b[i % cols]);
  EXPECT_LT(test::relative_error(with_bias<float>(x, b), result), 1e-6);
}

TEST(Bias, GradientMatchesFiniteDifferences) {
  const Values x = test::random_values(rows * cols, 1), d_out = test::random_values(rows * cols, 3);
  Values b = test::random_values(cols, 2), d_b(cols);
  Strided<double> d(rows, cols, d_out);
  bias_backward<double>({}, d_b, d.mat());
  test::check_gradient(
      "b", [&] { return test::inner_product(d_out, with_bias<double>(x, b)); }, b, d_b);
  const Values once = d_b;
  bias_backward<double>({}, d_b, d.mat());
  for (int j = 0; j < cols; ++j) EXPECT_NEAR(d_b[j], 2 * once[j], 1e-12) << "gradients add up";
}

}  // namespace
}  // namespace nanorun::kernels::portable
