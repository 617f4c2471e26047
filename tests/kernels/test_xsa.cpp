#include "kernels/xsa.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/check.hpp"
#include "kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

/// Inputs of one case, the upstream gradient, and what the accumulated gradients start from. Alpha is one per token and
/// head, or one per head, whose rows coincide.
struct Case {
  int tokens, heads, head_dim;
  bool learned;
  Values y, v, alpha, d_out, start_v, start_alpha;

  Case(int tokens, int heads, int head_dim, bool learned)
      : tokens(tokens), heads(heads), head_dim(head_dim), learned(learned) {
    const std::size_t size = static_cast<std::size_t>(tokens) * width(), alphas = (learned ? 1 : tokens) * heads;
    y = test::random_values(size, 1);
    v = test::random_values(size, 2);
    alpha = test::random_values(alphas, 3);
    d_out = test::random_values(size, 4);
    start_v = test::random_values(size, 5);
    start_alpha = test::random_values(alphas, 6);
  }

  int width() const { return heads * head_dim; }
};

/// [tokens, heads] of an alpha or its gradient.
template <class T>
Mat<T> alphas(const Case& c, test::Vector<T>& values) {
  return {values.data(), c.tokens, c.heads, c.learned ? 0 : c.heads};
}

template <class T>
Values forward(const Case& c) {
  Strided<T> y(c.tokens, c.width(), c.y), v(c.tokens, c.width(), c.v), out(c.tokens, c.width());
  auto alpha = test::convert<T>(c.alpha);
  xsa_forward<T>({}, out.mat(), y.mat(), v.mat(), alphas(c, alpha), c.heads);
  return out.dense();
}

/// Less the start values of what was added to.
struct Gradients {
  Values y, v, alpha;
};

template <class T>
Gradients backward(const Case& c, bool in_place) {
  Strided<T> y(c.tokens, c.width(), c.y), v(c.tokens, c.width(), c.v), d_out(c.tokens, c.width(), c.d_out);
  Strided<T> separate(c.tokens, c.width()), d_v(c.tokens, c.width(), c.start_v);
  auto alpha = test::convert<T>(c.alpha), d_alpha = test::convert<T>(c.start_alpha);
  Strided<T>& d_y = in_place ? d_out : separate;
  xsa_backward<T>({}, d_y.mat(), d_v.mat(), alphas(c, d_alpha), d_out.mat(), y.mat(), v.mat(), alphas(c, alpha),
                  c.heads);
  return {d_y.dense(), test::difference(d_v.dense(), c.start_v),
          test::difference(test::convert<double>(d_alpha), c.start_alpha)};
}

class Xsa : public testing::TestWithParam<bool> {};

TEST_P(Xsa, ForwardIsTheFormula) {
  Case c(5, 3, 7, GetParam());
  std::fill_n(c.v.begin(), c.head_dim, 1e-5);  // <v, v> below 1e-8
  const Values out = forward<double>(c);
  for (int t = 0; t < c.tokens; ++t) {
    for (int h = 0; h < c.heads; ++h) {
      const int first = (t * c.heads + h) * c.head_dim;
      double yv = 0, vv = 0;
      for (int i = first; i < first + c.head_dim; ++i) yv += c.y[i] * c.v[i], vv += c.v[i] * c.v[i];
      const double taken = std::tanh(c.alpha[c.learned ? h : t * c.heads + h]) * yv / std::max(vv, 1e-8);
      for (int i = first; i < first + c.head_dim; ++i) EXPECT_NEAR(out[i], c.y[i] - taken * c.v[i], 1e-14);
    }
  }
}

TEST_P(Xsa, GradientsAreTheDerivatives) {
  Case c(4, 3, 7, GetParam());
  const Gradients d = backward<double>(c, false);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
  test::check_gradient("y", loss, c.y, d.y, 1e-7, 1e-5, c.y.size());
  test::check_gradient("v", loss, c.v, d.v, 1e-7, 1e-5, c.v.size());
  test::check_gradient("alpha", loss, c.alpha, d.alpha);
}

TEST_P(Xsa, GradientsOfTinyValuesAreTheDerivatives) {
  Case c(4, 3, 7, GetParam());
  for (double& v : c.v) v *= 1e-5;
  const Gradients d = backward<double>(c, false);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
  test::check_gradient("y", loss, c.y, d.y);
  test::check_gradient("v", loss, c.v, d.v, 1e-7, 1e-8, c.v.size());
}

TEST_P(Xsa, OutputsMayReplaceInputs) {
  const Case c(5, 3, 7, GetParam());
  const Gradients separate = backward<double>(c, false), in_place = backward<double>(c, true);
  EXPECT_EQ(in_place.y, separate.y);
  EXPECT_EQ(in_place.v, separate.v);
  EXPECT_EQ(in_place.alpha, separate.alpha);
  Strided<double> y(c.tokens, c.width(), c.y), v(c.tokens, c.width(), c.v);
  auto alpha = c.alpha;
  xsa_forward<double>({}, y.mat(), y.mat(), v.mat(), alphas(c, alpha), c.heads);
  EXPECT_EQ(y.dense(), forward<double>(c));
}

TEST_P(Xsa, FloatAgreesWithDouble) {
  const Case c(300, 6, 128, GetParam());
  EXPECT_LT(test::relative_error(forward<float>(c), forward<double>(c)), 1e-6);
  const Gradients d = backward<float>(c, false), exact = backward<double>(c, false);
  EXPECT_LT(test::relative_error(d.y, exact.y), 1e-6);
  EXPECT_LT(test::relative_error(d.v, exact.v), 1e-6);
  EXPECT_LT(test::relative_error(d.alpha, exact.alpha), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Learned, Xsa, testing::Bool());

}  // namespace
}  // namespace nanorun::kernels::portable
