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

/// The update itself takes the momenta as they are before that.
TEST(MuonMomentum, IsRoundedToBf16WhereItIsStored) {
  constexpr int rows = 24, cols = 40;
  constexpr std::size_t n = rows * cols;
  test::Vector<std::byte> memory(1 << 20);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  const auto update = [&](bool rounds, test::Vector<float>& w, test::Vector<float>& buf, test::Vector<float>& slow) {
    test::Vector<float> g = test::convert<float>(test::random_values(n, 1));
    test::Vector<double> squares(2);
    const MuonBatch<float> batch{.count = 1,
                                 .rows = rows,
                                 .cols = cols,
                                 .weights = w.data(),
                                 .gradients = g.data(),
                                 .momentum = {.wide = buf.data()},
                                 .copy = w.data(),
                                 .lr = 0.1,
                                 .slow_momentum = {.wide = slow.data()},
                                 .round_momenta = rounds};
    muon_update<float>({}, {&batch, 1}, mixed_options(7), {&squares[0], &squares[1]}, Workspace(memory).subspan(skip));
  };
  const auto start = [](unsigned seed) { return test::convert<float>(test::random_values(n, seed)); };
  test::Vector<float> w = start(2), buf = start(3), slow = start(4);
  test::Vector<float> rounded_w = w, rounded_buf = buf, rounded_slow = slow;
  update(false, w, buf, slow);
  update(true, rounded_w, rounded_buf, rounded_slow);
  EXPECT_EQ(rounded_w, w);
  EXPECT_NE(rounded_buf, buf);
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(rounded_buf[i], round_to_bf16(buf[i])) << i;
    ASSERT_EQ(rounded_slow[i], round_to_bf16(slow[i])) << i;
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
