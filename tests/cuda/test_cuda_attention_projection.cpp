#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/attention_projection.hpp"
#include "tests/cuda/projection_shape.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Source;
using test::Tensor;
using test::Tokens;
using Shape = test::ProjectionShape;

constexpr double eps = 1.0 / 128;

/// The last row has only the still dims of keys; every other row has all columns.
void expect_still_dims_alone(Mat<const float> qkv, const Shape& s) {
  const int heads = s.heads, head_dim = s.head_dim, first_still = s.still_from > 0 ? s.still_from : head_dim / 4;
  int wrong = 0;
  for (int t = 0; t < qkv.rows; ++t) {
    for (int j = 0; j < qkv.cols; ++j) {
      const bool still_key = j / head_dim / heads == 1 && j % (head_dim / 2) >= first_still;
      wrong += std::isnan(qkv.row(t)[j]) != (t + 1 == qkv.rows && !still_key);
    }
  }
  EXPECT_EQ(wrong, 0);
}

void compare(const Shape& s, Source source) {
  SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.in) + ", " + std::to_string(s.heads) + " heads of " +
               std::to_string(s.head_dim) + ", source " + std::to_string(static_cast<int>(source)));
  const int head_dim = s.head_dim, width = s.heads * head_dim, vocabulary = s.rows > 1000 ? 50304 : 5;
  Tensor<bf16> x(s.rows, s.in, 1), w(3 * width, s.in, 2), u(source == Source::table ? vocabulary : s.rows, width, 3);
  const int angle_rows = s.paired ? 2 * s.rows : s.rows;
  Tensor<float> cos(angle_rows, head_dim / 2, 4), sin(angle_rows, head_dim / 2, 5), lambda(1, 2, 6);
  const Tokens tokens(s.rows, vocabulary, 7);
  auto qkv = Tensor<bf16>::poisoned(s.key_offset ? s.rows + 1 : s.rows, 3 * width, 3 * width + s.pad);
  auto v_out = Tensor<bf16>::poisoned(s.rows, width);
  auto rstd = Tensor<float>::poisoned(s.rows, 2 * s.heads);

  const auto host_residual =
      test::residual_of<float>(source, lambda.host().data, qkv.host(), u.host(), tokens.host.data());
  const auto device_residual =
      test::residual_of<bf16>(source, lambda.device().data, qkv.device(), u.device(), tokens.device.data());

  Tensor<float> bias(1, 3 * width, 8);
  const Vec<const float> host_bias = s.bias ? Vec<const float>(bias.host_flat()) : Vec<const float>();
  const Vec<const float> device_bias = s.bias ? Vec<const float>(bias.device_flat()) : Vec<const float>();
  const auto mixed = [&](const auto& qkv, const auto& separate) {
    return host_residual.in_place ? qkv.row_block(0, s.rows).col_block(2 * width, width) : separate;
  };
  portable::attention_projection_forward<float>({}, qkv.host(), mixed(qkv.host(), v_out.host()), rstd.host(), x.host(),
                                                w.host(), s.rotary<float>(cos.host(), sin.host()), host_residual, eps,
                                                host_bias);
  cuda::attention_projection_forward<bf16>({}, qkv.device(), mixed(qkv.device(), v_out.device()), rstd.device(),
                                           x.device(), w.device(), s.rotary<bf16>(cos.device(), sin.device()),
                                           device_residual, eps, device_bias);
  // Sums of up to 768 products, in another order, stand behind every element.
  qkv.expect_match("qkv", 1e-3, 0x1p-8, s.key_offset ? Tensor<bf16>::Written::in_part : Tensor<bf16>::Written::whole);
  if (s.key_offset) expect_still_dims_alone(qkv.host(), s);
  if (!host_residual.in_place) v_out.expect_match("v_out", 1e-3);
  rstd.expect_match("rstd", 0, 1e-4, s.norms ? Tensor<float>::Written::whole : Tensor<float>::Written::in_part);
}

class CudaAttentionProjection : public testing::TestWithParam<Source> {};

TEST_P(CudaAttentionProjection, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  // Less than a tile, and more in both directions; with an odd number of heads the last tile of the values is half one.
  for (const Shape& s :
       {Shape{1, 64, 1}, Shape{17, 128, 1, 128}, Shape{300, 576, 3, 16}, Shape{512, 64, 2},
        Shape{.rows = 1, .in = 64, .heads = 2, .head_dim = 64},
        Shape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .head_dim = 64},
        // The halves of tiles are of q and k, of k and v.
        Shape{.rows = 17, .in = 64, .heads = 1, .head_dim = 64},
        Shape{.rows = 300, .in = 576, .heads = 5, .pad = 16, .head_dim = 64},
        Shape{.rows = 300, .in = 576, .heads = 6, .paired = true, .head_dim = 64},
        Shape{.rows = 300, .in = 576, .heads = 3, .pad = 16, .bias = true},
        Shape{.rows = 300, .in = 576, .heads = 5, .bias = true, .head_dim = 64},
        Shape{.rows = 17, .in = 64, .heads = 2, .bias = true}, Shape{.rows = 1, .in = 64, .heads = 2, .paired = true},
        Shape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .paired = true},
        Shape{.rows = 1, .in = 64, .heads = 1, .key_offset = true},
        Shape{.rows = 192, .in = 64, .heads = 2, .key_offset = true},
        Shape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .paired = true, .key_offset = true}}) {
    compare(s, GetParam());
  }
}

/// The weights of dead dims are not zero here: q and k must be.
TEST_P(CudaAttentionProjection, NarrowQueriesAndKeysMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s :
       {Shape{.rows = 1, .in = 64, .heads = 1, .live_pairs = 32},
        Shape{.rows = 300, .in = 576, .heads = 3, .pad = 16, .live_pairs = 32},
        Shape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .paired = true, .live_pairs = 32},
        Shape{.rows = 300, .in = 576, .heads = 3, .live_pairs = 8},
        Shape{.rows = 1, .in = 64, .heads = 1, .key_offset = true, .live_pairs = 48, .still_from = 24},
        Shape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .key_offset = true, .live_pairs = 48, .still_from = 24},
        Shape{.rows = 300, .in = 576, .heads = 6, .paired = true, .key_offset = true, .live_pairs = 48},
        Shape{.rows = 8191, .in = 768, .heads = 6, .paired = true, .live_pairs = 32},
        Shape{.rows = 16384, .in = 768, .heads = 6, .key_offset = true, .live_pairs = 48, .still_from = 24}}) {
    compare(s, GetParam());
  }
}

/// Both sides leave rstd as it is.
TEST_P(CudaAttentionProjection, HeadsWithoutNormMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : {Shape{.rows = 1, .in = 64, .heads = 1, .norms = false},
                         Shape{.rows = 300, .in = 576, .heads = 3, .pad = 16, .norms = false},
                         Shape{.rows = 300, .in = 576, .heads = 3, .bias = true, .norms = false},
                         Shape{.rows = 17, .in = 64, .heads = 1, .head_dim = 64, .norms = false},
                         Shape{.rows = 300, .in = 576, .heads = 5, .pad = 16, .head_dim = 64, .norms = false},
                         Shape{.rows = 4096, .in = 768, .heads = 12, .bias = true, .head_dim = 64, .norms = false}}) {
    compare(s, GetParam());
  }
}

TEST_P(CudaAttentionProjection, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(GetParam() == Source::table ? Shape{49152, 768, 6} : Shape{8191, 768, 6}, GetParam());
  compare({.rows = 8191, .in = 768, .heads = 6, .paired = true}, GetParam());
  compare({.rows = 16384, .in = 768, .heads = 6, .key_offset = true}, GetParam());
  compare({.rows = 4096, .in = 1600, .heads = 25, .head_dim = 64}, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Mix, CudaAttentionProjection,
                         testing::Values(Source::none, Source::in_place, Source::as_is, Source::interpolated,
                                         Source::itself, Source::unit, Source::table));

/// Operands that e4m3 has without error: integers.
test::Vector<fp8> codes_of_integers(const test::Vector<float>& values) {
  test::Vector<fp8> codes;
  for (const float value : values) {
    const auto at = std::ranges::lower_bound(test::e4m3.values, std::abs(value));
    codes.push_back({static_cast<std::uint8_t>(at - test::e4m3.values.begin() + (value < 0 ? 0x80 : 0))});
  }
  return codes;
}

void compare_fp8(const Shape& s) {
  SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.in) + ", " + std::to_string(s.heads) + " heads of " +
               std::to_string(s.head_dim) + ", in 8 bits");
  const int width = s.heads * s.head_dim;
  const auto integers = [](int rows, int cols, unsigned seed) {
    test::Vector<float> values;
    for (const double x : test::random_values(std::size_t{1} * rows * cols, seed, -2.5, 2.5)) {
      values.push_back(static_cast<float>(std::round(x)));
    }
    return values;
  };
  test::Vector<float> x = integers(s.rows, s.in, 1), w = integers(3 * width, s.in, 2), factor{0x1p-6f};
  const test::DeviceVector<fp8> device_x(codes_of_integers(x)), device_w(codes_of_integers(w));
  const test::DeviceVector<float> device_factor(factor);
  const int angle_rows = s.paired ? 2 * s.rows : s.rows;
  Tensor<float> cos(angle_rows, s.head_dim / 2, 4), sin(angle_rows, s.head_dim / 2, 5), lambda(1, 2, 6);
  Tensor<bf16> u(s.rows, width, 3);
  auto qkv = Tensor<bf16>::poisoned(s.key_offset ? s.rows + 1 : s.rows, 3 * width, 3 * width + s.pad);
  auto v_out = Tensor<bf16>::poisoned(s.rows, width);
  auto rstd = Tensor<float>::poisoned(s.rows, 2 * s.heads);
  portable::attention_projection_forward_fp8<float>(
      {}, qkv.host(), v_out.host(), rstd.host(), {x.data(), s.rows, s.in}, {w.data(), 3 * width, s.in}, factor.data(),
      s.rotary<float>(cos.host(), sin.host()), {.lambda = lambda.host().data, .source = u.host(), .unit_source = true},
      eps);
  cuda::attention_projection_forward_fp8<bf16>(
      {}, qkv.device(), v_out.device(), rstd.device(), {device_x.data(), s.rows, s.in},
      {device_w.data(), 3 * width, s.in}, device_factor.data(), s.rotary<bf16>(cos.device(), sin.device()),
      {.lambda = lambda.device().data, .source = u.device(), .unit_source = true}, eps);
  qkv.expect_match("qkv", 1e-3, 0x1p-8, s.key_offset ? Tensor<bf16>::Written::in_part : Tensor<bf16>::Written::whole);
  if (s.key_offset) expect_still_dims_alone(qkv.host(), s);
  v_out.expect_match("v_out", 1e-3);
  rstd.expect_match("rstd", 0, 1e-4);
}

TEST(CudaAttentionProjection, OperandsIn8BitsMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s :
       {Shape{128, 128, 1}, Shape{384, 256, 3, 16}, Shape{.rows = 256, .in = 384, .heads = 5, .head_dim = 64},
        Shape{.rows = 384, .in = 768, .heads = 6, .pad = 16, .paired = true},
        Shape{.rows = 384, .in = 768, .heads = 6, .key_offset = true},
        Shape{.rows = 384, .in = 768, .heads = 6, .paired = true, .live_pairs = 32},
        Shape{.rows = 384, .in = 768, .heads = 6, .key_offset = true, .live_pairs = 48, .still_from = 24},
        Shape{.rows = 16384, .in = 768, .heads = 6}}) {
    compare_fp8(s);
  }
}

TEST(CudaAttentionProjection, RefusesOtherWidths) {
  SKIP_WITHOUT_DEVICE();
  const Tensor<bf16> x(16, 64, 1), w(3 * 128, 64, 2), qkv(16, 3 * 128, 3), v_out(16, 128, 4);
  const Tensor<float> rstd(16, 4, 5), table(16, 64, 6), lambda(1, 2, 7);
  const ValueResidual<bf16> residual{.lambda = lambda.device().data};
  const auto project = [&](const Shape& s) {
    cuda::attention_projection_forward<bf16>({}, qkv.device(), v_out.device(), rstd.device(),
                                             x.device().col_block(0, s.in), w.device().col_block(0, s.in),
                                             s.rotary<bf16>(table.device(), table.device()), residual, eps);
  };
  EXPECT_THROW(project(Shape{.in = 64, .heads = 4}), std::invalid_argument);  // heads of 32
  EXPECT_THROW(project(Shape{.in = 32, .heads = 1}), std::invalid_argument);
  EXPECT_THROW(project(Shape{.in = 64, .heads = 1, .live_pairs = 12}), std::invalid_argument);
  EXPECT_THROW(project(Shape{.in = 64, .heads = 2, .head_dim = 64, .live_pairs = 16}), std::invalid_argument);
  EXPECT_THROW(project(Shape{.in = 64, .heads = 1, .paired = true}), std::invalid_argument);  // no second head
  EXPECT_THROW(project(Shape{.in = 64, .heads = 1, .live_pairs = 32, .norms = false}), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
