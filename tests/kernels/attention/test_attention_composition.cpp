#include "kernels/attention/attention_composition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

struct Shape {
  std::string name;
  int tokens, heads, head_dim, window;
  std::vector<int> document_begins;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

/// Inputs of one case, the upstream gradient, and what the gradients of q, k, v, w1 and w2 start from.
struct Case : Shape {
  Values q, k, v, y, w1, w2, d_out, start[5];

  explicit Case(const Shape& shape) : Shape(shape) {
    const std::size_t size = static_cast<std::size_t>(tokens) * width();
    unsigned seed = 0;
    for (Values* values : {&q, &k, &v, &y, &d_out, &start[0], &start[1], &start[2]}) {
      *values = test::random_values(size, ++seed);
    }
    for (Values* values : {&w1, &w2, &start[3], &start[4]}) {
      *values = test::random_values(static_cast<std::size_t>(tokens) * heads, ++seed);
    }
  }

  int width() const { return heads * head_dim; }
  test::Vector<std::int32_t> first_keys() const {
    test::Vector<std::int32_t> first(tokens, 0);
    for (int t = 0; t < tokens; ++t) {
      for (const int begin : document_begins) first[t] = begin <= t ? begin : first[t];
    }
    return first;
  }
};

constexpr double scale = 0.3;

/// The inputs of a case as the op takes them, and its scratch.
template <class T>
struct Inputs {
  Strided<T> q, k, v, w1, w2;
  test::Vector<std::int32_t> first_keys;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  test::Vector<Line> workspace;
  int heads, window;

  explicit Inputs(const Case& c)
      : q(c.tokens, c.width(), c.q),
        k(c.tokens, c.width(), c.k),
        v(c.tokens, c.width(), c.v),
        w1(c.tokens, c.heads, c.w1),
        w2(c.tokens, c.heads, c.w2),
        first_keys(c.first_keys()),
        workspace(ceil_div(attention_composition_workspace<T>(c.tokens, c.heads, c.window), sizeof(Line))),
        heads(c.heads),
        window(c.window) {
    std::memset(workspace.data(), 0xff, workspace.size() * sizeof(Line));  // NaN
  }

  AttentionComposition<T> view() {
    return {{q.mat(), k.mat(), v.mat(), heads, T(scale)}, w1.mat(), w2.mat(), window, first_keys.data()};
  }
  Workspace scratch() { return std::as_writable_bytes(std::span(workspace)); }
};

template <class T>
Values forward(const Case& c) {
  Inputs<T> in(c);
  Strided<T> y(c.tokens, c.width(), c.y), out(c.tokens, c.width());
  attention_composition_forward<T>({}, out.mat(), y.mat(), in.view(), in.scratch());
  return out.dense();
}

/// Less the start values.
struct Gradients {
  Values q, k, v, w1, w2;
};

template <class T>
Gradients backward(const Case& c) {
  Inputs<T> in(c);
  Strided<T> d_q(c.tokens, c.width(), c.start[0]), d_k(c.tokens, c.width(), c.start[1]);
  Strided<T> d_v(c.tokens, c.width(), c.start[2]), d_w1(c.tokens, c.heads, c.start[3]);
  Strided<T> d_w2(c.tokens, c.heads, c.start[4]), d_out(c.tokens, c.width(), c.d_out);
  attention_composition_backward<T>({}, {d_q.mat(), d_k.mat(), d_v.mat(), d_w1.mat(), d_w2.mat()}, d_out.mat(),
                                    in.view(), in.scratch());
  return {test::difference(d_q.dense(), c.start[0]), test::difference(d_k.dense(), c.start[1]),
          test::difference(d_v.dense(), c.start[2]), test::difference(d_w1.dense(), c.start[3]),
          test::difference(d_w2.dense(), c.start[4])};
}

/// a[t, s] for all s by the definition; 0 outside the window and the document.
Values composed_row(const Case& c, int t) {
  Values a(c.tokens, 0.0), p(c.tokens);
  const int begin = std::max(c.first_keys()[t], t - c.window + 1);
  double squares = 0;
  for (int h = 0; h < c.heads; ++h) squares += c.w1[t * c.heads + h] * c.w1[t * c.heads + h];
  for (int h = 0; h < c.heads; ++h) {
    double sum = 0;
    for (int s = begin; s <= t; ++s) {
      double product = 0;
      for (int j = h * c.head_dim; j < (h + 1) * c.head_dim; ++j) {
        product += c.q[t * c.width() + j] * c.k[s * c.width() + j];
      }
      sum += p[s] = std::exp(scale * product);
    }
    const double w1 = c.w1[t * c.heads + h] / std::sqrt(squares / c.heads + 1e-6);
    for (int s = begin; s <= t; ++s) a[s] += w1 * p[s] / sum;
  }
  return a;
}

class AttentionCompositionTest : public testing::TestWithParam<Shape> {};

TEST_P(AttentionCompositionTest, ForwardIsTheFormula) {
  const Case c(GetParam());
  const Values out = forward<double>(c);
  for (int t = 0; t < c.tokens; ++t) {
    const Values a = composed_row(c, t);
    for (int j = 0; j < c.width(); ++j) {
      double sum = 0;
      for (int s = 0; s <= t; ++s) sum += a[s] * c.v[s * c.width() + j];
      const int i = t * c.width() + j;
      ASSERT_NEAR(out[i], c.y[i] + c.w2[t * c.heads + j / c.head_dim] * sum, 1e-13) << t << ", " << j;
    }
  }
}

TEST_P(AttentionCompositionTest, OutputMayReplaceItsBase) {
  const Case c(GetParam());
  Inputs<double> in(c);
  Strided<double> y(c.tokens, c.width(), c.y);
  attention_composition_forward<double>({}, y.mat(), y.mat(), in.view(), in.scratch());
  EXPECT_EQ(y.dense(), forward<double>(c));
}

TEST_P(AttentionCompositionTest, GradientsAreTheDerivatives) {
  Case c(GetParam());
  const Gradients d = backward<double>(c);
  const auto loss = [&] { return test::inner_product(c.d_out, forward<double>(c)); };
  // Strides of 37 and 7 elements, prime to the row lengths, visit all columns in turn.
  const std::size_t samples = c.tokens < 10 ? c.q.size() : c.q.size() / 37;
  const std::size_t weight_samples = c.tokens < 10 ? c.w1.size() : c.w1.size() / 7;
  ASSERT_TRUE(c.tokens < 10 || (c.q.size() / samples == 37 && c.w1.size() / weight_samples == 7));
  test::check_gradient("q", loss, c.q, d.q, 1e-7, 1e-5, samples);
  test::check_gradient("k", loss, c.k, d.k, 1e-7, 1e-5, samples);
  test::check_gradient("v", loss, c.v, d.v, 1e-7, 1e-5, samples);
  test::check_gradient("w1", loss, c.w1, d.w1, 1e-7, 1e-5, weight_samples);
  test::check_gradient("w2", loss, c.w2, d.w2, 1e-7, 1e-5, weight_samples);
}

/// Sums have up to 176 terms, the keys of a block and of the largest window before it. In fp32 and in any order they
/// round to about sqrt(176) 2^-24 = 8e-7 of themselves. The gradients start from zero: some are 0.03 in size, and a
/// start of 1 would round to 2^-24 of itself once, or, where the BLAS adds to it product by product, once for each
/// term.
TEST_P(AttentionCompositionTest, FloatAgreesWithDouble) {
  Case c(GetParam());
  for (Values* values : {&c.q, &c.k, &c.v, &c.y, &c.w1, &c.w2, &c.d_out}) {
    *values = test::convert<double>(test::convert<float>(*values));
  }
  for (Values& start : c.start) std::ranges::fill(start, 0.0);
  constexpr double tolerance = 1e-6;
  EXPECT_LT(test::relative_error(forward<float>(c), forward<double>(c)), tolerance);
  const Gradients d = backward<float>(c), exact = backward<double>(c);
  EXPECT_LT(test::relative_error(d.q, exact.q), tolerance);
  EXPECT_LT(test::relative_error(d.k, exact.k), tolerance);
  EXPECT_LT(test::relative_error(d.v, exact.v), tolerance);
  EXPECT_LT(test::relative_error(d.w1, exact.w1), tolerance);
  EXPECT_LT(test::relative_error(d.w2, exact.w2), tolerance);
}

INSTANTIATE_TEST_SUITE_P(Windows, AttentionCompositionTest,
                         testing::Values(Shape{"two_tokens", 2, 2, 4, 3, {}}, Shape{"few_keys", 140, 3, 4, 5, {}},
                                         Shape{"documents", 200, 2, 6, 20, {0, 50, 63, 64, 65, 130}},
                                         Shape{"window_beyond_a_block", 330, 2, 4, 112, {30, 200}},
                                         Shape{"window_beyond_the_sequence", 90, 2, 4, 1000, {}}),
                         [](const auto& info) { return info.param.name; });

TEST(AttentionCompositionWeights, AHeadWithoutWeightLeavesItsOutput) {
  Case c({"", 70, 2, 4, 10, {}});
  for (int t = 0; t < c.tokens; ++t) c.w2[2 * t + 1] = 0;
  const Values out = forward<double>(c);
  for (int t = 0; t < c.tokens; ++t) {
    for (int j = 4; j < 8; ++j) ASSERT_EQ(out[8 * t + j], c.y[8 * t + j]);
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
