#include "kernels/residual.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/check.hpp"
#include "kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr double eps = 1.0 / 128;

/// Inputs of one case, upstream gradient of x, and what the accumulated gradients start from.
struct Case {
  int rows, cols;
  bool with_skip;
  Values x_prev, x0, skip, a, s, d_x, start_x0, start_a, start_s;

  Case(int rows, int cols, bool with_skip) : rows(rows), cols(cols), with_skip(with_skip) {
    const std::size_t size = static_cast<std::size_t>(rows) * cols;
    x_prev = test::random_values(size, 1);
    x0 = test::random_values(size, 2);
    skip = test::random_values(size, 3);
    a = {0.8, -0.3};
    s = {1.7};
    d_x = test::random_values(size, 4);
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
  bool with_skip;

  explicit Inputs(const Case& c)
      : x_prev(c.rows, c.cols, c.x_prev),
        x0(c.rows, c.cols, c.x0),
        skip(c.rows, c.cols, c.skip),
        a(test::convert<T>(c.a)),
        s(test::convert<T>(c.s)),
        with_skip(c.with_skip) {}

  ResidualInputs<T> view() {
    ResidualInputs<T> in{x_prev.mat(), x0.mat(), a.data(), {}, nullptr};
    if (with_skip) in.skip = skip.mat(), in.s = s.data();
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

template <class T>
Gradients backward(const Case& c) {
  Inputs<T> in(c);
  Strided<T> d_x(c.rows, c.cols, c.d_x), d_x0(c.rows, c.cols, c.start_x0), d_skip(c.rows, c.cols);
  auto d_a = test::convert<T>(c.start_a), d_s = test::convert<T>(c.start_s);
  ResidualGradients<T> d{d_x.mat(), d_x0.mat(), d_a.data(), {}, nullptr};
  if (c.with_skip) d.d_skip = d_skip.mat(), d.d_s = d_s.data();
  residual_mix_backward<T>({}, d, in.view());
  return {d_x.dense(), test::difference(d_x0.dense(), c.start_x0),
          test::difference(test::convert<double>(d_a), c.start_a), d_skip.dense(),
          test::difference(test::convert<double>(d_s), c.start_s)};
}

class Residual : public testing::TestWithParam<bool> {};

TEST_P(Residual, ForwardIsTheFormula) {
  const Case c(5, 37, GetParam());
  const Forward result = forward<double>(c);
  for (int t = 0; t < c.rows; ++t) {
    double squares = 0;
    for (int i = t * c.cols; i < (t + 1) * c.cols; ++i) {
      const double x = c.a[0] * (c.x_prev[i] + (c.with_skip ? c.s[0] * c.skip[i] : 0)) + c.a[1] * c.x0[i];
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
  const auto loss = [&] { return test::inner_product(c.d_x, forward<double>(c).x); };
  test::check_gradient("x_prev", loss, c.x_prev, d.x_prev);
  test::check_gradient("x0", loss, c.x0, d.x0);
  test::check_gradient("a", loss, c.a, d.a);
  if (c.with_skip) {
    test::check_gradient("skip", loss, c.skip, d.skip);
    test::check_gradient("s", loss, c.s, d.s);
  } else {
    EXPECT_EQ(d.s[0], 0);
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
  if (c.with_skip) {
    EXPECT_LT(test::relative_error(d.skip, d_reference.skip), 1e-6);
    EXPECT_LT(test::relative_error(d.s, d_reference.s), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Skip, Residual, testing::Bool(),
                         [](const auto& info) { return info.param ? "with" : "without"; });

}  // namespace
}  // namespace nanorun::kernels::portable
