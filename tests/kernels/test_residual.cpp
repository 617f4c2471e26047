#include "kernels/residual.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/check.hpp"
#include "kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr double eps = 1.0 / 128;

/// A skip from an earlier block, or from x_prev itself.
enum class Skip { none, other, x_prev };

/// Inputs of one case, upstream gradients of x and n, and what the accumulated gradients start from.
struct Case {
  int rows, cols;
  Skip skips;
  Values x_prev, x0, skip, a, s, d_x, d_n, d_x_prev, start_x0, start_a, start_s;

  Case(int rows, int cols, Skip skips) : rows(rows), cols(cols), skips(skips) {
    const std::size_t size = static_cast<std::size_t>(rows) * cols;
    x_prev = test::random_values(size, 1);
    x0 = test::random_values(size, 2);
    skip = test::random_values(size, 3);
    a = {0.8, -0.3};
    s = {1.7};
    d_x = test::random_values(size, 4);
    d_n = test::random_values(size, 6);
    d_x_prev = test::random_values(size, 7);
    start_x0 = test::random_values(size, 5);
    start_a = {0.5, -2.0};
    start_s = {3.0};
  }
};

/// The inputs of a case as an op takes them.
template <class T>
struct Inputs {
  Strided<T> x_prev, x0, skip;
  test::Vector<T> a, s;
  Skip skips;

  explicit Inputs(const Case& c)
      : x_prev(c.rows, c.cols, c.x_prev),
        x0(c.rows, c.cols, c.x0),
        skip(c.rows, c.cols, c.skip),
        a(test::convert<T>(c.a)),
        s(test::convert<T>(c.s)),
        skips(c.skips) {}

  ResidualInputs<T> view() {
    ResidualInputs<T> in{x_prev.mat(), x0.mat(), a.data(), {}, nullptr};
    if (skips != Skip::none) in.s = s.data(), in.skip = skips == Skip::other ? skip.mat() : x_prev.mat();
    return in;
  }
};

struct Forward {
  Values x, n, rstd;
};

template <class T>
Forward forward(const Case& c) {
  Inputs<T> in(c);
  Strided<T> x(c.rows, c.cols), n(c.rows, c.cols);
  auto rstd = test::poisoned<T>(c.rows);
  residual_mix_norm_forward<T>({}, x.mat(), n.mat(), rstd, in.view(), eps);
  return {x.dense(), n.dense(), test::convert<double>(rstd)};
}

/// What backward wrote, less the start values of the accumulated gradients.
struct Gradients {
  Values x_prev, x0, a, skip, s;
};

/// x_prev has another reader, whose gradient joins, where there is no skip.
bool x_prev_is_read(const Case& c) { return c.skips == Skip::none; }

template <class T>
Gradients backward(const Case& c) {
  Inputs<T> in(c);
  const Forward saved = forward<T>(c);
  Strided<T> n(c.rows, c.cols, saved.n), d_n(c.rows, c.cols, c.d_n), d_x_prev(c.rows, c.cols, c.d_x_prev);
  const auto rstd = test::convert<T>(saved.rstd);
  Strided<T> d_x(c.rows, c.cols, c.d_x), d_x0(c.rows, c.cols, c.start_x0), d_skip(c.rows, c.cols);
  auto d_a = test::convert<T>(c.start_a), d_s = test::convert<T>(c.start_s);
  ResidualGradients<T> d{d_x.mat(), d_x0.mat(), d_a.data(), {}, nullptr, {}};
  if (c.skips != Skip::none) d.d_skip = d_skip.mat(), d.d_s = d_s.data();
  if (x_prev_is_read(c)) d.d_x_prev = d_x_prev.mat();
  residual_mix_norm_backward<T>({}, d, {n.mat(), rstd, d_n.mat()}, in.view());
  return {d_x.dense(), test::difference(d_x0.dense(), c.start_x0),
          test::difference(test::convert<double>(d_a), c.start_a), d_skip.dense(),
          test::difference(test::convert<double>(d_s), c.start_s)};
}

class Residual : public testing::TestWithParam<Skip> {};

TEST_P(Residual, ForwardIsTheFormula) {
  const Case c(5, 37, GetParam());
  const Forward result = forward<double>(c);
  for (int t = 0; t < c.rows; ++t) {
    double squares = 0;
    for (int i = t * c.cols; i < (t + 1) * c.cols; ++i) {
      const double source = c.skips == Skip::other ? c.skip[i] : c.x_prev[i];
      const double skipped = c.skips == Skip::none ? 0 : c.s[0] * source;
      const double x = c.a[0] * (c.x_prev[i] + skipped) + c.a[1] * c.x0[i];
      squares += x * x;
      EXPECT_NEAR(result.x[i], x, 1e-14);
    }
    const double rstd = 1 / std::sqrt(squares / c.cols + eps);
    EXPECT_NEAR(result.rstd[t], rstd, 1e-13);
    for (int i = t * c.cols; i < (t + 1) * c.cols; ++i) EXPECT_NEAR(result.n[i], result.x[i] * rstd, 1e-13);
  }
}

TEST_P(Residual, ForwardMayReplaceThePreviousStream) {
  const Case c(5, 37, GetParam());
  const Forward expected = forward<double>(c);
  Inputs<double> in(c);
  Strided<double> n(c.rows, c.cols);
  Values rstd(c.rows);
  residual_mix_norm_forward<double>({}, in.x_prev.mat(), n.mat(), rstd, in.view(), eps);
  EXPECT_EQ(in.x_prev.dense(), expected.x);
  EXPECT_EQ(n.dense(), expected.n);
}

TEST_P(Residual, GradientsAreTheDerivatives) {
  Case c(3, 19, GetParam());
  const Gradients d = backward<double>(c);
  const auto loss = [&] {
    const Forward f = forward<double>(c);
    const double elsewhere = x_prev_is_read(c) ? test::inner_product(c.d_x_prev, c.x_prev) : 0;
    return test::inner_product(c.d_x, f.x) + test::inner_product(c.d_n, f.n) + elsewhere;
  };
  test::check_gradient("x_prev", loss, c.x_prev, d.x_prev);
  test::check_gradient("x0", loss, c.x0, d.x0);
  test::check_gradient("a", loss, c.a, d.a);
  if (c.skips == Skip::other) test::check_gradient("skip", loss, c.skip, d.skip);
  if (c.skips == Skip::none) {
    EXPECT_EQ(d.s[0], 0);
  } else {
    test::check_gradient("s", loss, c.s, d.s);
  }
}

TEST_P(Residual, FloatAgreesWithDouble) {
  const Case c(600, 768, GetParam());
  const Forward f = forward<float>(c), reference = forward<double>(c);
  EXPECT_LT(test::relative_error(f.x, reference.x), 1e-6);
  EXPECT_LT(test::relative_error(f.n, reference.n), 1e-6);
  EXPECT_LT(test::relative_error(f.rstd, reference.rstd), 1e-6);
  const Gradients d = backward<float>(c), d_reference = backward<double>(c);
  EXPECT_LT(test::relative_error(d.x_prev, d_reference.x_prev), 1e-6);
  EXPECT_LT(test::relative_error(d.x0, d_reference.x0), 1e-6);
  EXPECT_LT(test::relative_error(d.a, d_reference.a), 1e-5);
  if (c.skips == Skip::other) {
    EXPECT_LT(test::relative_error(d.skip, d_reference.skip), 1e-6);
  }
  // A sum of products of random sign, whose rounding is relative to the root of their number.
  EXPECT_NEAR(d.s[0], d_reference.s[0], 1e-6 * std::sqrt(1.0 * c.rows * c.cols));
}

std::string skip_name(const testing::TestParamInfo<Skip>& info) {
  const char* const names[] = {"None", "Other", "Previous"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Mix, Residual, testing::Values(Skip::none, Skip::other, Skip::x_prev), skip_name);

}  // namespace
}  // namespace nanorun::kernels::portable
