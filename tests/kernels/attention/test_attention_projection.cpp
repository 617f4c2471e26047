#include "kernels/attention/attention_projection.hpp"

#include <gtest/gtest.h>

#include "kernels/attention/attention_input_portable.hpp"
#include "kernels/linear/matmul.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;

constexpr int tokens = 5, heads = 2, head_dim = 6, width = heads * head_dim, in = 7;
constexpr double eps = 1.0 / 128;

/// Factors of the projection, and tables.
struct Inputs {
  Strided<double> x{tokens, in, test::random_values(tokens* in, 1)};
  Strided<double> w{3 * width, in, test::random_values(3 * width * in, 2)};
  Strided<double> cos{2 * tokens, head_dim / 2, test::random_values(tokens* head_dim, 3)};
  Strided<double> sin{2 * tokens, head_dim / 2, test::random_values(tokens* head_dim, 4)};
  Strided<double> source{tokens, width, test::random_values(tokens* width, 5)};
  test::Vector<double> lambda{0.3};

  Rotary<double> rotary() { return {.heads = heads, .cos = cos.mat(), .sin = sin.mat()}; }
  Rotary<double> paired_rotary() { return {.heads = heads, .cos = cos.mat(), .sin = sin.mat(), .paired = true}; }
};

struct Outputs {
  Strided<double> qkv{tokens, 3 * width}, v_out{tokens, width}, rstd{tokens, 2 * heads};
};

void expect_equal(Outputs& a, Outputs& b) {
  EXPECT_EQ(a.qkv.dense(), b.qkv.dense());
  EXPECT_EQ(a.v_out.dense(), b.v_out.dense());
  EXPECT_EQ(a.rstd.dense(), b.rstd.dense());
}

void expect_product_and_attention_input(Inputs& inputs, const ValueResidual<double>& residual,
                                        const Rotary<double>& rotary) {
  Outputs expected, got;
  linear_forward<double>({}, expected.qkv.mat(), inputs.x.mat(), inputs.w.mat());
  attention_input_forward<double>({}, expected.qkv.mat().col_block(0, 2 * width), expected.v_out.mat(),
                                  expected.rstd.mat(), expected.qkv.mat(), rotary, residual, eps);
  attention_projection_forward<double>({}, got.qkv.mat(), got.v_out.mat(), got.rstd.mat(), inputs.x.mat(),
                                       inputs.w.mat(), rotary, residual, eps);
  expect_equal(got, expected);
}

TEST(AttentionProjection, IsTheProductAndThenAttentionInput) {
  Inputs inputs;
  const double* const lambda = inputs.lambda.data();
  expect_product_and_attention_input(inputs, {.lambda = lambda, .interpolate = true, .source = inputs.source.mat()},
                                     inputs.rotary());
  expect_product_and_attention_input(inputs, {.lambda = lambda, .source = inputs.source.mat(), .unit_source = true},
                                     inputs.paired_rotary());
  Rotary<double> narrow = inputs.rotary();
  narrow.live_pairs = 2;
  expect_product_and_attention_input(inputs, {.lambda = lambda, .source = inputs.source.mat()}, narrow);
}

TEST(AttentionProjection, ValuesMayMixWithThemselves) {
  Inputs inputs;
  Outputs got;
  const ValueResidual<double> residual{
      .lambda = inputs.lambda.data(), .interpolate = true, .source = got.qkv.mat().col_block(2 * width, width)};
  attention_projection_forward<double>({}, got.qkv.mat(), got.v_out.mat(), got.rstd.mat(), inputs.x.mat(),
                                       inputs.w.mat(), inputs.rotary(), residual, eps);
  for (int t = 0; t < tokens; ++t) {
    for (int j = 0; j < width; ++j) {
      EXPECT_NEAR(got.v_out.mat().row(t)[j], got.qkv.mat().row(t)[2 * width + j], 1e-14);
    }
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
