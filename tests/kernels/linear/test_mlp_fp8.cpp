#include "kernels/linear/mlp_fp8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device/magnitude.hpp"
#include "kernels/linear/matmul.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr int rows = 33, width = 20, hidden = 70;
constexpr double margin_h = 1.8, margin_v = 1.12;

/// x [rows, width] in rows of `stride`; w [hidden, width]; v [width, hidden]. The delayed maxima are not those of h, v.
struct Problem {
  int stride = width + 3;
  test::Vector<double> x = test::random_values(rows * stride, 1, -2, 2);
  test::Vector<double> w = test::random_values(hidden * width, 2, -0.3, 0.3);
  test::Vector<double> v = test::random_values(width * hidden, 3, -0.1, 0.1);
  double delayed_h = 7, delayed_v = 0.08;
};

struct Result {
  test::Vector<double> h, out;
  double max_x = 0, max_h = 0;
};

/// With memory for the quantised h and v, which the portable implementation does not need.
template <class T>
Result forward(const Problem& p, Mat<e4m3> hq = {}, Workspace vq = {}) {
  const test::Vector<T> x = test::convert<T>(p.x), w = test::convert<T>(p.w), v = test::convert<T>(p.v);
  test::Vector<T> h = test::poisoned<T>(rows * hidden), out = test::poisoned<T>(rows * width);
  const test::Vector<T> delayed{static_cast<T>(p.delayed_h), static_cast<T>(p.delayed_v)};
  test::Vector<T> maxima(3);
  const Mat<const T> X(x.data(), rows, width, p.stride), W(w.data(), hidden, width), V(v.data(), width, hidden);
  max_magnitude<T>({}, std::vector<Magnitude<T>>{{&maxima[0], X}, {&maxima[1], W}});
  const std::size_t bytes =
      std::max(linear_fp8_workspace<T>(rows, width, hidden), linear_fp8_workspace<T>(rows, hidden, width));
  test::Vector<std::byte> memory(bytes + 64);
  const Workspace workspace =
      Workspace(memory).subspan(64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64, bytes);
  const Mat<T> H(h.data(), rows, hidden);
  const Fp8Scale<T> scale_h{&delayed[0], margin_h}, scale_v{&delayed[1], margin_v};
  linear_relu2_forward_fp8<T>({}, H, &maxima[2], X, {&maxima[0]}, W, {&maxima[1]}, workspace,
                              {hq, scale_h, V, scale_v, vq});
  linear_forward_fp8<T>({}, Mat<T>(out.data(), rows, width), H, scale_h, V, scale_v, workspace, hq, vq);
  return {test::convert<double>(h), test::convert<double>(out), maxima[0], maxima[2]};
}

/// e4m3 of a / s by the table of its values, times s.
double through_e4m3(double a, double maximum, double margin = 1) {
  const auto s = static_cast<float>(margin * std::max(maximum, 1e-12) / 448);
  return static_cast<double>(test::e4m3.round(static_cast<float>(a) * (1 / s))) * s;
}

enum class Operands { rounded, exact };

/// The definition, one element at a time; with exact operands that of the MLP itself.
Result naive(const Problem& p, Operands operands = Operands::rounded) {
  const auto q = [=](double a, double maximum, double margin = 1) {
    return operands == Operands::rounded ? through_e4m3(a, maximum, margin) : a;
  };
  Result r{test::Vector<double>(rows * hidden), test::Vector<double>(rows * width)};
  double max_w = 0;
  for (int t = 0; t < rows; ++t) {
    for (int j = 0; j < width; ++j) r.max_x = std::max(r.max_x, std::abs(p.x[t * p.stride + j]));
  }
  for (const double value : p.w) max_w = std::max(max_w, std::abs(value));
  for (int t = 0; t < rows; ++t) {
    for (int i = 0; i < hidden; ++i) {
      double z = 0;
      for (int j = 0; j < width; ++j) z += q(p.x[t * p.stride + j], r.max_x) * q(p.w[i * width + j], max_w);
      const double relu = std::max(z, 0.0);
      r.h[t * hidden + i] = relu * relu;
      r.max_h = std::max(r.max_h, relu * relu);
    }
    for (int j = 0; j < width; ++j) {
      for (int i = 0; i < hidden; ++i) {
        r.out[t * width + j] +=
            q(r.h[t * hidden + i], p.delayed_h, margin_h) * q(p.v[j * hidden + i], p.delayed_v, margin_v);
      }
    }
  }
  return r;
}

void expect_near(const Result& actual, const Result& expected, double tolerance) {
  EXPECT_LT(test::relative_error(actual.h, expected.h), tolerance);
  EXPECT_LT(test::relative_error(actual.out, expected.out), tolerance);
  EXPECT_NEAR(actual.max_h, expected.max_h, tolerance * expected.max_h);
}

TEST(MlpFp8, EqualsTheEmulationByTables) {
  const Problem p;
  const Result expected = naive(p), result = forward<double>(p);
  expect_near(result, expected, 1e-12);
  EXPECT_EQ(result.max_x, expected.max_x);
  // In fp32 a value within rounding error of a midpoint may fall to the other side.
  expect_near(forward<float>(p), expected, 1e-3);
  const Result exact = naive(p, Operands::exact);
  EXPECT_GT(test::relative_error(expected.h, exact.h), 1e-2) << "rounding must be visible";
  EXPECT_GT(test::relative_error(expected.out, exact.out), 1e-2);
}

TEST(MlpFp8, LiesNearTheMlpItself) {
  const Problem p;
  const Result result = forward<double>(p);
  test::Vector<double> h(rows * hidden), out(rows * width);
  const Mat<double> H(h.data(), rows, hidden);
  linear_relu2_forward<double>({}, H, Mat<const double>(p.x.data(), rows, width, p.stride),
                               Mat<const double>(p.w.data(), hidden, width));
  linear_forward<double>({}, Mat<double>(out.data(), rows, width), H, Mat<const double>(p.v.data(), width, hidden));
  EXPECT_LT(test::relative_error(result.h, h), 0.06);
  EXPECT_LT(test::relative_error(result.out, out), 0.08);
}

TEST(MlpFp8, ValuesBeyondADelayedMaximumSaturate) {
  Problem p;
  p.delayed_h = naive(p).max_h / 5;
  p.delayed_v = 0.05;
  expect_near(forward<double>(p), naive(p), 1e-12);
  EXPECT_GT(test::relative_error(naive(p).out, naive(p, Operands::exact).out), 0.2);
}

TEST(MlpFp8, ZerosStayZeros) {
  Problem p;
  std::ranges::fill(p.v, 0.0);
  p.delayed_v = 0;
  for (const double value : forward<float>(p).out) EXPECT_EQ(value, 0);
  std::ranges::fill(p.x, 0.0);
  const Result result = forward<float>(p);
  for (const double value : result.h) EXPECT_EQ(value, 0);
  EXPECT_EQ(result.max_h, 0);
}

TEST(MlpFp8, NotANumberReachesTheOutput) {
  Problem p;
  p.x[1] = std::numeric_limits<double>::quiet_NaN();
  const Result result = forward<float>(p);
  EXPECT_TRUE(std::isnan(result.out[0]));
  EXPECT_FALSE(std::isnan(result.out[width])) << "another row";
}

TEST(MlpFp8, LeavesTheMemoryOfWhatIsMadeAhead) {
  const Problem p;
  constexpr std::uint8_t untouched = 0xA5;
  test::Vector<e4m3> hq(rows * hidden, {untouched});
  test::Vector<std::byte> vq(linear_fp8_workspace<float>(0, hidden, width), std::byte{untouched});
  EXPECT_EQ(forward<float>(p, {hq.data(), rows, hidden}, vq).out, forward<float>(p).out);
  for (const std::byte byte : vq) ASSERT_EQ(byte, std::byte{untouched});
  for (const e4m3 element : hq) ASSERT_EQ(element.bits, untouched);
}

}  // namespace
}  // namespace nanorun::kernels::portable
