#include "kernels/attention/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::convert;
using test::poisoned;
using test::random_values;
using test::relative_error;

constexpr int heads = 2, head_dim = 16, width = heads * head_dim;
constexpr int everything = std::numeric_limits<int>::max();
constexpr Token end_of_text = 50256;

struct Case {
  std::string name;
  int length;
  WindowKind kind;
  int window;
  std::vector<int> document_begins;

  test::Vector<Token> tokens() const {
    test::Vector<Token> tokens(length, 7);
    for (const int t : document_begins) tokens[t] = end_of_text;
    return tokens;
  }

  OwnedMask mask() const {
    OwnedMask mask(length);
    mask.build(tokens(), end_of_text, kind, window);
    return mask;
  }

  /// The definition, free of blocks.
  bool allowed(int q, int k) const {
    if (k > q) return false;
    for (const int t : document_begins) {
      if (k < t && t <= q) return false;
    }
    if (kind == WindowKind::token) return q - k < window;
    return q / attention_block - k / attention_block < window / attention_block;
  }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Buffers of one attention: q, k, v (and their gradients) are column blocks of one wider buffer, y and d_y of a
/// buffer with a spare column.
template <class T>
struct Problem {
  static constexpr int y_columns = width + 1;
  static constexpr T scale = T(0.3);
  int length;
  test::Vector<T> qkv, d_y, y, lse, d_qkv;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  test::Vector<Line> workspace;

  explicit Problem(int length)
      : length(length),
        qkv(convert<T>(random_values(static_cast<std::size_t>(length) * 3 * width, 1, -2, 2))),
        d_y(convert<T>(random_values(static_cast<std::size_t>(length) * y_columns, 2))),
        y(poisoned<T>(d_y.size())),
        lse(poisoned<T>(static_cast<std::size_t>(length) * heads)),
        d_qkv(poisoned<T>(qkv.size())),
        workspace(attention_workspace<T>(length, heads, head_dim) / sizeof(Line)) {
    std::memset(workspace.data(), 0xff, workspace.size() * sizeof(Line));  // NaN
  }

  Mat<T> part(test::Vector<T>& buffer, int i) {
    return Mat<T>(buffer.data(), length, 3 * width).col_block(i * width, width);
  }
  Mat<T> values(test::Vector<T>& buffer) { return Mat<T>(buffer.data(), length, y_columns).col_block(0, width); }
  AttentionInputs<T> inputs() { return {part(qkv, 0), part(qkv, 1), part(qkv, 2), heads, scale}; }
  Workspace scratch() { return std::as_writable_bytes(std::span(workspace)); }

  void forward(const Mask& mask) {
    attention_forward<T>({}, values(y), {lse.data(), heads, length}, inputs(), mask.view(), scratch());
  }
  void backward(const Mask& mask, const AttentionValueFactor<T>& factor = {}) {
    attention_backward<T>({}, part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2), values(y),
                          Mat<T>(lse.data(), heads, length), values(d_y), inputs(), mask.view(), scratch(), factor);
  }
};

/// One row of the dense masked softmax: y [head_dim] and lse of query t in head h.
void reference_row(Problem<double>& p, const Case& c, int h, int t, double* y, double& lse) {
  const auto in = p.inputs();
  double sum = 0;
  std::fill_n(y, head_dim, 0.0);
  for (int k = 0; k < c.length; ++k) {
    if (!c.allowed(t, k)) continue;
    double s = 0;
    for (int j = 0; j < head_dim; ++j) s += in.q.row(t)[h * head_dim + j] * in.k.row(k)[h * head_dim + j];
    const double e = std::exp(in.scale * s);
    sum += e;
    for (int j = 0; j < head_dim; ++j) y[j] += e * in.v.row(k)[h * head_dim + j];
  }
  for (int j = 0; j < head_dim; ++j) y[j] /= sum;
  lse = std::log(sum);
}

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, ForwardIsTheDenseMaskedSoftmax) {
  const Case& c = GetParam();
  Problem<double> p(c.length);
  p.forward(c.mask());
  for (int h = 0; h < heads; ++h) {
    for (int t = 0; t < c.length; ++t) {
      double y[head_dim], lse;
      reference_row(p, c, h, t, y, lse);
      ASSERT_NEAR(p.lse[h * c.length + t], lse, 1e-12) << "head " << h << " query " << t;
      for (int j = 0; j < head_dim; ++j) {
        ASSERT_NEAR(p.values(p.y).row(t)[h * head_dim + j], y[j], 1e-12) << "head " << h << " query " << t;
      }
    }
  }
  for (int t = 0; t < c.length; ++t) ASSERT_TRUE(std::isnan(p.values(p.y).row(t)[width])) << "wrote beyond its columns";
}

TEST_P(Attention, BackwardIsTheGradient) {
  const Case& c = GetParam();
  const OwnedMask mask = c.mask();
  Problem<double> p(c.length);
  p.forward(mask);
  p.backward(mask);
  Problem<double> moved(c.length);
  const auto loss = [&] {
    moved.forward(mask);
    double sum = 0;
    for (int t = 0; t < c.length; ++t) {
      for (int j = 0; j < width; ++j) sum += moved.values(moved.y).row(t)[j] * p.values(p.d_y).row(t)[j];
    }
    return sum;
  };
  // A sampling stride prime to the row length visits the columns of q, k and v in turn.
  const std::size_t samples = p.qkv.size() / 481;
  ASSERT_EQ(std::gcd(p.qkv.size() / samples, 3 * width), 1u);
  test::check_gradient("qkv", loss, moved.qkv, p.d_qkv, 1e-8, 1e-4, samples);
}

/// The values are 0.75 u, and the loss is a function of u and of this factor.
TEST_P(Attention, BackwardFindsTheGradientBehindTheFactorOfTheValues) {
  const OwnedMask mask = GetParam().mask();
  Problem<double> p(GetParam().length);
  test::Vector<double> factor{0.75}, d_factor{2}, d_u;
  test::Vector<double> u = random_values(static_cast<std::size_t>(p.length) * width, 3);
  const auto loss = [&] {
    double sum = 0;
    for (int t = 0; t < p.length; ++t) {
      for (int j = 0; j < width; ++j) p.part(p.qkv, 2).row(t)[j] = factor[0] * u[t * width + j];
    }
    p.forward(mask);
    for (int t = 0; t < p.length; ++t) {
      for (int j = 0; j < width; ++j) sum += p.values(p.y).row(t)[j] * p.values(p.d_y).row(t)[j];
    }
    return sum;
  };
  const auto differentiate = [&] {
    loss();
    p.backward(mask, {factor.data(), d_factor.data()});
  };
  differentiate();
  for (int t = 0; t < p.length; ++t) {
    const double* const row = p.part(p.d_qkv, 2).row(t);
    d_u.insert(d_u.end(), row, row + width);
  }
  test::check_gradient("factor", loss, factor, {d_factor[0] - 2}, 1e-8, 1e-4);
  test::check_gradient("u", loss, u, d_u, 1e-8, 1e-4);
  const double before = d_factor[0];
  factor[0] = 0;
  differentiate();
  EXPECT_EQ(d_factor[0], before);
}

TEST_P(Attention, FloatAgreesWithDouble) {
  const Case& c = GetParam();
  const OwnedMask mask = c.mask();
  Problem<double> exact(c.length);
  Problem<float> p(c.length);
  // Both compute on the inputs that float can hold.
  exact.qkv = convert<double>(p.qkv);
  exact.d_y = convert<double>(p.d_y);
  exact.forward(mask);
  exact.backward(mask);
  p.forward(mask);
  p.backward(mask);
  for (int t = 0; t < c.length; ++t) p.y[t * p.y_columns + width] = exact.y[t * p.y_columns + width] = 0;
  EXPECT_LT(relative_error(p.y, exact.y), 5e-7);
  EXPECT_LT(relative_error(p.lse, exact.lse), 5e-7);
  EXPECT_LT(relative_error(p.d_qkv, exact.d_qkv), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Masks, Attention,
                         testing::Values(Case{"causal", 384, WindowKind::token, everything, {}},
                                         Case{"documents", 384, WindowKind::token, everything, {0, 50, 200, 201, 300}},
                                         Case{"one_block", 384, WindowKind::block, 128, {}},
                                         Case{"two_blocks_and_documents", 512, WindowKind::block, 256, {128, 130, 300}},
                                         Case{"one_token", 384, WindowKind::token, 1, {}},
                                         Case{"100_tokens", 384, WindowKind::token, 100, {}},
                                         Case{"200_tokens_and_documents", 512, WindowKind::token, 200, {70, 400}}),
                         [](const auto& info) { return info.param.name; });

TEST(AttentionRange, ScoresBeyondTheRangeOfExpStayAccurate) {
  const Case c{"", 256, WindowKind::token, everything, {}};
  const OwnedMask mask = c.mask();
  Problem<float> p(c.length);
  for (int t = 0; t < c.length; ++t) {
    for (int j = 0; j < width; ++j) p.part(p.qkv, 0).row(t)[j] *= 30;
  }
  Problem<double> exact(c.length);
  exact.qkv = convert<double>(p.qkv);
  p.forward(mask);
  exact.forward(mask);
  EXPECT_GT(*std::max_element(exact.lse.begin(), exact.lse.end()), 150);  // exp overflows float at 88.7
  for (int t = 0; t < c.length; ++t) p.y[t * p.y_columns + width] = exact.y[t * p.y_columns + width] = 0;
  EXPECT_LT(relative_error(p.y, exact.y), 1e-5);
  EXPECT_LT(relative_error(p.lse, exact.lse), 5e-7);
}

/// Poisons q, k and v of block `poisoned_block` and expects the rows [first, last), which have no pair with it, to stay
/// bit for bit: an implementation that computed such a pair and masked it afterwards would spread the NaN, as 0 * NaN
/// is NaN.
void expect_block_untouched(const Case& c, int poisoned_block, int first, int last) {
  const OwnedMask mask = c.mask();
  Problem<float> clean(c.length), dirty(c.length);
  const auto begin = dirty.qkv.begin() + poisoned_block * attention_block * 3 * width;
  std::fill_n(begin, attention_block * 3 * width, std::numeric_limits<float>::quiet_NaN());
  for (auto* p : {&clean, &dirty}) {
    p->forward(mask);
    p->backward(mask);
  }
  EXPECT_TRUE(std::isnan(dirty.lse[poisoned_block * attention_block]));
  for (int t = first; t < last; ++t) {
    for (int h = 0; h < heads; ++h) ASSERT_EQ(dirty.lse[h * c.length + t], clean.lse[h * c.length + t]) << t;
    for (int j = 0; j < width; ++j) {
      ASSERT_EQ(dirty.values(dirty.y).row(t)[j], clean.values(clean.y).row(t)[j]) << t;
      for (const int part : {0, 1, 2}) {
        ASSERT_EQ(dirty.part(dirty.d_qkv, part).row(t)[j], clean.part(clean.d_qkv, part).row(t)[j]) << t;
      }
    }
  }
}

TEST(AttentionSparsity, SkipsBlocksOutsideTheWindow) {
  const Case one_block{"", 512, WindowKind::block, 128, {}};
  expect_block_untouched(one_block, 1, 0, 128);
  expect_block_untouched(one_block, 1, 256, 512);
  const Case two_blocks{"", 512, WindowKind::block, 256, {}};
  expect_block_untouched(two_blocks, 0, 256, 512);
  expect_block_untouched(two_blocks, 3, 0, 256);
}

TEST(AttentionSparsity, SkipsBlocksOfOtherDocuments) {
  expect_block_untouched({"", 512, WindowKind::token, everything, {128}}, 0, 128, 512);
  const Case inside_blocks{"", 512, WindowKind::token, everything, {100, 300}};
  expect_block_untouched(inside_blocks, 0, 384, 512);
  expect_block_untouched(inside_blocks, 3, 0, 256);
}

}  // namespace
}  // namespace nanorun::kernels::portable
