#include "kernels/optimizer/outer_nesterov.hpp"

#include <gtest/gtest.h>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::size_t n = 20'011;  // more than one chunk, with a remainder

/// Snoo as published: gradients w_outer - w for SGD with PyTorch's Nesterov momentum, which starts from w_outer.
TEST(OuterNesterov, IsSgdWithNesterovMomentumOnTheSumsOfUpdates) {
  constexpr double lr = 0.68, momentum = 0.37;
  test::Vector<double> w = test::random_values(n, 1), outer = w, u(n);
  test::Vector<double> expected = w, buffer(n);
  for (unsigned step = 0; step < 4; ++step) {
    const test::Vector<double> inner = test::random_values(n, 2 + step);
    for (std::size_t i = 0; i < n; ++i) {
      w[i] += inner[i];
      const double gradient = -inner[i];
      buffer[i] = momentum * buffer[i] + gradient;
      expected[i] -= lr * (gradient + momentum * buffer[i]);
    }
    outer_nesterov<double>({}, w, outer, u, lr, momentum);
    EXPECT_LT(test::relative_error(w, expected), 1e-14);
    EXPECT_EQ(w, outer);
  }
}

TEST(OuterNesterov, WithARateOfOneAndNoMomentumChangesNothing) {
  test::Vector<double> w = test::random_values(n, 1), outer = test::random_values(n, 2), u(n);
  const test::Vector<double> before = w;
  outer_nesterov<double>({}, w, outer, u, 1, 0);
  EXPECT_LT(test::relative_error(w, before), 1e-15);
}

}  // namespace
}  // namespace nanorun::kernels::portable
