// Paired heads against plain attention over the rows that the pairing defines.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention/attention.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr int tokens = 256, heads = 6, head_dim = 8, width = heads * head_dim;
constexpr Token end_of_text = 50256;

/// A mask over the 2 T rows: documents of whole tokens, a window of rows.
OwnedMask mask_of(int window) {
  test::Vector<Token> ids(2 * tokens, 7);
  for (const int t : {0, 37, 38, 200}) ids[2 * t] = end_of_text;
  OwnedMask mask(2 * tokens);
  mask.build(ids, end_of_text, WindowKind::token, window);
  return mask;
}

/// Tensors of one attention, dense: y, lse and the gradients of q, k and v, for inputs q, k, v and d_y.
struct Inputs {
  Values q, k, v, d_y;
};
struct Results {
  Values y, lse, d_q, d_k, d_v;
};

enum class Heads { plain, paired };

template <class T>
Results run(const Inputs& in, int rows, int n_heads, const Mask& mask, Heads kind,
            const AttentionValueFactor<T>& factor = {}) {
  const bool paired = kind == Heads::paired;
  const int cols = n_heads * head_dim, lse_rows = paired ? n_heads / 2 : n_heads;
  Strided<T> q(rows, cols, in.q), k(rows, cols, in.k), v(rows, cols, in.v), d_y(rows, cols, in.d_y);
  Strided<T> y(rows, cols), d_q(rows, cols), d_k(rows, cols), d_v(rows, cols);
  Strided<T> lse(lse_rows, mask.view().length);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  test::Vector<Line> workspace(attention_workspace<T>(rows, n_heads, head_dim) / sizeof(Line));
  std::memset(workspace.data(), 0xff, workspace.size() * sizeof(Line));  // NaN
  const Workspace scratch = std::as_writable_bytes(std::span(workspace));
  const AttentionInputs<T> inputs{q.mat(), k.mat(), v.mat(), n_heads, T(0.3), paired};
  attention_forward<T>({}, y.mat(), lse.mat(), inputs, mask.view(), scratch);
  attention_backward<T>({}, d_q.mat(), d_k.mat(), d_v.mat(), y.mat(), lse.mat(), d_y.mat(), inputs, mask.view(),
                        scratch, factor);
  return {y.dense(), lse.dense(), d_q.dense(), d_k.dense(), d_v.dense()};
}

/// The definition: row 2 t + s of head v is head v + s H/2 of token t. A dense [T, H D] already lies like that.
Results reference(const Inputs& in, const Mask& mask) {
  return run<double>(in, 2 * tokens, heads / 2, mask, Heads::plain);
}

Inputs random_inputs() {
  constexpr std::size_t size = static_cast<std::size_t>(tokens) * width;
  return {test::random_values(size, 1, -2, 2), test::random_values(size, 2, -2, 2), test::random_values(size, 3),
          test::random_values(size, 4)};
}

class PairedAttention : public testing::TestWithParam<int> {};

TEST_P(PairedAttention, IsAttentionOverThePairsRows) {
  const Inputs in = random_inputs();
  const OwnedMask mask = mask_of(GetParam());
  const Results got = run<double>(in, tokens, heads, mask, Heads::paired), expected = reference(in, mask);
  EXPECT_LT(test::relative_error(got.y, expected.y), 1e-14);
  EXPECT_LT(test::relative_error(got.lse, expected.lse), 1e-14);
  EXPECT_LT(test::relative_error(got.d_q, expected.d_q), 1e-13);
  EXPECT_LT(test::relative_error(got.d_k, expected.d_k), 1e-13);
  EXPECT_LT(test::relative_error(got.d_v, expected.d_v), 1e-13);
}

TEST_P(PairedAttention, AFactorOfTheValuesIsThatOfAllHeads) {
  const Inputs in = random_inputs();
  const OwnedMask mask = mask_of(GetParam());
  const double factor = 0.75;
  double d_factor = 2;
  const Results got = run<double>(in, tokens, heads, mask, Heads::paired, {&factor, &d_factor});
  Results expected = reference(in, mask);
  EXPECT_NEAR(d_factor - 2, test::inner_product(expected.d_v, in.v) / factor, 1e-10);
  for (double& d : expected.d_v) d *= factor;
  EXPECT_LT(test::relative_error(got.d_v, expected.d_v), 1e-13);
  EXPECT_LT(test::relative_error(got.d_k, expected.d_k), 1e-13);
}

TEST_P(PairedAttention, FloatAgreesWithDouble) {
  Inputs in = random_inputs();
  for (Values* values : {&in.q, &in.k, &in.v, &in.d_y}) *values = test::convert<double>(test::convert<float>(*values));
  const OwnedMask mask = mask_of(GetParam());
  const Results got = run<float>(in, tokens, heads, mask, Heads::paired),
                exact = run<double>(in, tokens, heads, mask, Heads::paired);
  EXPECT_LT(test::relative_error(got.y, exact.y), 5e-7);
  EXPECT_LT(test::relative_error(got.lse, exact.lse), 5e-7);
  EXPECT_LT(test::relative_error(got.d_q, exact.d_q), 2e-6);
  EXPECT_LT(test::relative_error(got.d_k, exact.d_k), 2e-6);
  EXPECT_LT(test::relative_error(got.d_v, exact.d_v), 2e-6);
}

TEST(PairedAttentionRows, TheFirstQuerySeesItselfAndTheSecondBoth) {
  const Inputs in = random_inputs();
  const Results got = run<double>(in, tokens, heads, mask_of(2), Heads::paired);
  const int other = heads / 2 * head_dim;  // columns from a head to the one it is paired with
  for (int j = 0; j < head_dim; ++j) EXPECT_NEAR(got.y[j], in.v[j], 1e-15);
  const auto score = [&](int key) {
    double s = 0;
    for (int j = 0; j < head_dim; ++j) s += in.q[other + j] * in.k[key + j];
    return std::exp(0.3 * s);
  };
  const double first = score(0), second = score(other);
  for (int j = 0; j < head_dim; ++j) {
    EXPECT_NEAR(got.y[other + j], (first * in.v[j] + second * in.v[other + j]) / (first + second), 1e-14);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, PairedAttention, testing::Values(2, 3, 101, 128, 300, 1000));

}  // namespace
}  // namespace nanorun::kernels::portable
