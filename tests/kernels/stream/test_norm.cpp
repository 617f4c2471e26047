#include "kernels/stream/norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr double eps = 1.0 / 128;  // large enough that a gradient without it is wrong

struct Forward {
  Values out, rstd;
};

template <class T>
Forward forward(int rows, int cols, const Values& x_values) {
  Strided<T> out(rows, cols), x(rows, cols, x_values);
  auto rstd = test::poisoned<T>(rows);
  rms_norm_forward<T>({}, out.mat(), rstd, x.mat(), eps);
  return {out.dense(), test::convert<double>(rstd)};
}

/// Without `start`, d_x is replaced.
template <class T>
Values backward(int rows, int cols, const Values& x, const Values& d_out_values, const Values& start = {}) {
  const Forward saved = forward<T>(rows, cols, x);
  Strided<T> d_x = start.empty() ? Strided<T>(rows, cols) : Strided<T>(rows, cols, start);
  Strided<T> out(rows, cols, saved.out), d_out(rows, cols, d_out_values);
  const auto rstd = test::convert<T>(saved.rstd);
  rms_norm_backward<T>({}, d_x.mat(), out.mat(), rstd, d_out.mat(), accumulate_if(!start.empty()));
  return d_x.dense();
}

TEST(Norm, ForwardIsTheFormula) {
  constexpr int rows = 5, cols = 37;
  const Values x = test::random_values(rows * cols, 1);
  const Forward result = forward<double>(rows, cols, x);
  for (int t = 0; t < rows; ++t) {
    double squares = 0;
    for (int j = 0; j < cols; ++j) squares += x[t * cols + j] * x[t * cols + j];
    const double rstd = 1 / std::sqrt(squares / cols + eps);
    EXPECT_NEAR(result.rstd[t], rstd, 1e-14);
    for (int j = 0; j < cols; ++j) EXPECT_NEAR(result.out[t * cols + j], x[t * cols + j] * rstd, 1e-14);
  }
}

/// The norm of x + shift, as if the sum had been formed.
TEST(Norm, ForwardTakesAShift) {
  constexpr int rows = 5, cols = 37;
  const Values x = test::random_values(rows * cols, 1), shift = test::random_values(cols, 2);
  Values sum = x;
  for (int i = 0; i < rows * cols; ++i) sum[i] += shift[i % cols];
  const Forward expected = forward<double>(rows, cols, sum);
  Strided<double> from(rows, cols, x), out(rows, cols);
  Values rstd = test::poisoned<double>(rows);
  rms_norm_forward<double>({}, out.mat(), rstd, from.mat(), eps, nullptr, shift);
  EXPECT_LT(test::relative_error(out.dense(), expected.out), 1e-14);
  EXPECT_LT(test::relative_error(rstd, expected.rstd), 1e-14);
}

/// NaN does not count, nor does what lies between the rows.
TEST(Norm, ForwardRaisesTheLargestMagnitude) {
  constexpr int rows = 5, cols = 37;
  Values values = test::random_values(rows * cols, 1), rstd(rows);
  values[2 * cols + 7] = -9;
  values[4 * cols] = std::numeric_limits<double>::quiet_NaN();
  Strided<double> x(rows, cols, values), out(rows, cols);
  Values maximum(1);
  rms_norm_forward<double>({}, out.mat(), rstd, x.mat(), eps, maximum.data());
  const double largest = -out.dense()[2 * cols + 7];
  EXPECT_GT(largest, 3);
  EXPECT_EQ(maximum[0], largest);
  maximum[0] = 99;
  rms_norm_forward<double>({}, out.mat(), rstd, x.mat(), eps, maximum.data());
  EXPECT_EQ(maximum[0], 99);
}

TEST(Norm, ForwardMayReplaceItsInput) {
  constexpr int rows = 5, cols = 37;
  const Values values = test::random_values(rows * cols, 1);
  Strided<double> x(rows, cols, values);
  Values rstd(rows);
  rms_norm_forward<double>({}, x.mat(), rstd, x.mat(), eps);
  EXPECT_EQ(x.dense(), forward<double>(rows, cols, values).out);
}

TEST(Norm, GradientIsTheDerivative) {
  constexpr int rows = 3, cols = 19;
  Values x = test::random_values(rows * cols, 1, -0.2, 0.2);
  const Values d_out = test::random_values(rows * cols, 2), start = test::random_values(rows * cols, 3);
  const Values d_x = test::difference(backward<double>(rows, cols, x, d_out, start), start);
  const auto loss = [&] { return test::inner_product(d_out, forward<double>(rows, cols, x).out); };
  test::check_gradient("x", loss, x, d_x);
  test::check_gradient("x, replaced", loss, x, backward<double>(rows, cols, x, d_out));
}

TEST(Norm, FloatAgreesWithDouble) {
  constexpr int rows = 33, cols = 768;
  const Values x = test::random_values(rows * cols, 1);
  const Values d_out = test::random_values(rows * cols, 2), start = test::random_values(rows * cols, 3);
  const Forward as_float = forward<float>(rows, cols, x), as_double = forward<double>(rows, cols, x);
  EXPECT_LT(test::relative_error(as_float.out, as_double.out), 1e-6);
  EXPECT_LT(test::relative_error(as_float.rstd, as_double.rstd), 1e-6);
  EXPECT_LT(
      test::relative_error(backward<float>(rows, cols, x, d_out, start), backward<double>(rows, cols, x, d_out, start)),
      1e-6);
}

}  // namespace
}  // namespace nanorun::kernels::portable
