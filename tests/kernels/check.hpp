#pragma once
// Shared by the kernel tests: random data and the comparison of a gradient with central differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

/// Whether an output takes the place of an input.
enum class InPlace : bool { no, yes };

inline test::Vector<double> random_values(std::size_t n, unsigned seed, double low = -1, double high = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> draw(low, high);
  test::Vector<double> values(n);
  for (double& value : values) value = draw(generator);
  return values;
}

/// Positions sorted by token, those of the same token ascending.
inline test::Vector<std::int32_t> sorted_positions(const test::Vector<Token>& tokens) {
  test::Vector<std::int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t t) { return tokens[t]; });
  return order;
}

/// An output buffer whose unwritten elements show up in every comparison.
template <class T>
test::Vector<T> poisoned(std::size_t n) {
  return test::Vector<T>(n, std::numeric_limits<T>::quiet_NaN());
}

template <class To, class From>
test::Vector<To> convert(const test::Vector<From>& values) {
  return {values.begin(), values.end()};
}

/// ‖a - b‖ / ‖b‖; NaN when either holds one.
template <class A, class B>
double relative_error(const test::Vector<A>& a, const test::Vector<B>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
}

/// Compares `gradient` of `loss` with respect to x, element by element (at most `samples` of them, spread evenly),
/// with central differences of step h. `loss` reads x.
inline void check_gradient(const char* name, const std::function<double()>& loss, test::Vector<double>& x,
                           const test::Vector<double>& gradient, double tolerance = 1e-7, double h = 1e-5,
                           std::size_t samples = 64) {
  ASSERT_EQ(x.size(), gradient.size()) << name;
  double scale = 1e-12;
  for (const double g : gradient) {
    ASSERT_TRUE(std::isfinite(g)) << name << ": gradient not written";
    scale = std::max(scale, std::abs(g));
  }
  const std::size_t stride = std::max<std::size_t>(1, x.size() / samples);
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const double kept = x[i];
    x[i] = kept + h;
    const double above = loss();
    x[i] = kept - h;
    const double below = loss();
    x[i] = kept;
    const double numeric = (above - below) / (2 * h);
    EXPECT_NEAR(gradient[i], numeric, tolerance * scale) << name << "[" << i << "]";
  }
}

}  // namespace nanorun::kernels::test
