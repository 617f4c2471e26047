#include "kernels/device/vector_math.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace nanorun::kernels {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Largest relative error of fast(x) over evenly spaced x, against the standard function in double.
double worst_error(float low, float high, float (*fast)(float), double (*exact)(double)) {
  constexpr int samples = 1'000'000;
  std::vector<float> x(samples), y(samples);
  for (int i = 0; i < samples; ++i) x[i] = static_cast<float>(low + (static_cast<double>(high) - low) * i / samples);
  for (int i = 0; i < samples; ++i) y[i] = fast(x[i]);
  double worst = 0;
  for (int i = 0; i < samples; ++i) {
    const double reference = exact(x[i]);
    const double error = std::abs(y[i] - reference) / std::max(std::abs(reference), 1e-300);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TEST(VectorMath, ExpIsAccurate) {
  EXPECT_LT(worst_error(-87, 88, fast_exp, std::exp), 2e-7);
  EXPECT_LT(worst_error(-1, 1, fast_exp, std::exp), 2e-7);
  EXPECT_LT(worst_error(-1e-3f, 1e-3f, fast_exp, std::exp), 2e-7);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
}

TEST(VectorMath, ExpSaturatesAndKeepsNan) {
  for (const float x : {-88.0f, -1e4f, -1e30f, -infinity}) EXPECT_EQ(fast_exp(x), 0.0f) << x;
  for (const float x : {89.0f, 1e4f, infinity}) EXPECT_EQ(fast_exp(x), infinity) << x;
  EXPECT_TRUE(std::isnan(fast_exp(nan)));
}

TEST(VectorMath, TanhIsAccurate) {
  EXPECT_LT(worst_error(-50, 50, fast_tanh, std::tanh), 3e-7);
  EXPECT_LT(worst_error(-1, 1, fast_tanh, std::tanh), 3e-7);
  EXPECT_LT(worst_error(-1e-3f, 1e-3f, fast_tanh, std::tanh), 3e-7);
  EXPECT_LT(worst_error(-1e-20f, 1e-20f, fast_tanh, std::tanh), 3e-7);
}

TEST(VectorMath, TanhSaturatesAndKeepsNan) {
  for (const float x : {10.0f, 100.0f, infinity}) {
    EXPECT_EQ(fast_tanh(x), 1.0f) << x;
    EXPECT_EQ(fast_tanh(-x), -1.0f) << x;
  }
  EXPECT_TRUE(std::isnan(fast_tanh(nan)));
}

TEST(VectorMath, ErfIsAccurate) {
  constexpr int samples = 1'000'000;
  double worst = 0;
  for (int i = 0; i <= samples; ++i) {
    const float x = -6 + 12.0f * i / samples;
    worst = std::max(worst, std::abs(fast_erf(x) - std::erf(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 6e-7);
}

TEST(VectorMath, ErfSaturatesAndKeepsNan) {
  for (const float x : {10.0f, 1e20f, infinity}) {
    EXPECT_EQ(fast_erf(x), 1.0f) << x;
    EXPECT_EQ(fast_erf(-x), -1.0f) << x;
  }
  EXPECT_TRUE(std::isnan(fast_erf(nan)));
}

TEST(VectorMath, DoubleIsTheStandardLibrary) {
  EXPECT_EQ(fast_exp(-0.3), std::exp(-0.3));
  EXPECT_EQ(fast_tanh(-0.3), std::tanh(-0.3));
  EXPECT_EQ(fast_erf(-0.3), std::erf(-0.3));
}

}  // namespace
}  // namespace nanorun::kernels
