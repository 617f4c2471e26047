#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/optimizer/muon_portable.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

/// The rates of pull request 349 of the speedrun, whose mix begins in step 514; here in step 5.
MuonOptions mixed_options(int step) {
  const double m = 0.85 + 0.08 * std::min(step / 240.0, 1.0);
  return {.iteration = six_maps_iteration,
          .momentum = m,
          .gradient_scale = 0.25,
          .fast_momentum = step < 5 ? m : 0.85,
          .slow_momentum = 0.98,
          .momentum_mix = step < 5 ? 1 : 0.4385};
}

/// Against sums over all gradients, each with the weight that it has left.
TEST(MuonMomentum, MixesAFastAndASlowOne) {
  constexpr std::size_t n = 5'011;
  constexpr int steps = 520;
  test::Vector<double> buf(n), slow(n), u(n), sum_fast(n), sum_slow(n), squares(1);
  test::Vector<float> buf32(n), slow32(n), u32(n);
  for (int step = 0; step < steps; ++step) {
    const MuonOptions options = mixed_options(step);
    const test::Vector<double> g = test::random_values(n, step);
    u = g;
    u32 = test::convert<float>(g);
    mixed_momentum<double>({}, u, buf, slow, options, squares.data());
    mixed_momentum<float>({}, u32, buf32, slow32, options, squares.data());
    const double f = options.fast_momentum, m = options.momentum, w = options.momentum_mix;
    test::Vector<double> expected(n);
    for (std::size_t i = 0; i < n; ++i) {
      sum_fast[i] += (1 - f) * (0.25 * g[i] - sum_fast[i]);
      sum_slow[i] += 0.02 * (0.25 * g[i] - sum_slow[i]);
      expected[i] = (1 - m) * 0.25 * g[i] + m * (w * sum_fast[i] + (1 - w) * sum_slow[i]);
    }
    ASSERT_LT(test::relative_error(u, expected), 1e-13) << step;
    ASSERT_LT(test::relative_error(u32, expected), 1e-6) << step;
  }
  EXPECT_LT(test::relative_error(buf, sum_fast), 1e-13);
  EXPECT_LT(test::relative_error(slow, sum_slow), 1e-13);
  EXPECT_LT(test::relative_error(buf32, sum_fast), 1e-6);
  EXPECT_LT(test::relative_error(slow32, sum_slow), 1e-6);
}

/// Before the mix begins, the slow momentum changes no bit.
TEST(MuonMomentum, AMixOfOneIsNoMix) {
  constexpr std::size_t n = 20'011;
  test::Vector<float> buf(n), slow(n), plain(n);
  for (int step = 0; step < 5; ++step) {
    const MuonOptions options = mixed_options(step);
    test::Vector<float> u = test::convert<float>(test::random_values(n, step)), expected = u;
    test::Vector<double> squares(1), expected_squares(1);
    mixed_momentum<float>({}, u, buf, slow, options, squares.data());
    nesterov_momentum<float>({}, expected, plain, options.momentum, options.gradient_scale, expected_squares.data());
    EXPECT_EQ(u, expected);
    EXPECT_EQ(buf, plain);
    EXPECT_EQ(squares, expected_squares);
  }
  EXPECT_GT(std::abs(slow[0]), 0);
}

}  // namespace
}  // namespace nanorun::kernels::portable
