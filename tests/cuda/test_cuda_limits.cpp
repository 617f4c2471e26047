// The check of the deck refuses what a CUDA op refuses, and nothing else of its kind: both sides of each limit.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_composition.hpp"
#include "kernels/attention/attention_projection.hpp"
#include "kernels/device/cuda_limits.hpp"
#include "kernels/lm_head/lm_head.hpp"
#include "kernels/stream/coefficient_net.hpp"
#include "kernels/stream/embedding.hpp"
#include "kernels/stream/mix.hpp"
#include "kernels/stream/norm.hpp"
#include "kernels/stream/sign_rows.hpp"
#include "src/config/config_check.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::BlasStream;
using test::Tensor;

bool check_takes(const Config& config) {
  Rules rules{config, {}};
  check_cuda(rules, Passes::both);
  try {
    rules.errors.rethrow(ExitCode::usage, Scope::all_ranks);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// Whether an op begins.
bool op_takes(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return false;
  }
  cudaDeviceSynchronize();
  return true;
}

/// An address that no op gets to use: it refuses the shapes before.
template <class T>
Mat<T> nowhere(int rows, int cols) {
  return {reinterpret_cast<T*>(std::uintptr_t{1} << 20), rows, cols};
}

TEST(CudaLimits, ColumnsOfTheStream) {
  SKIP_WITHOUT_DEVICE();
  const BlasStream stream;
  for (const int cols : {max_row, max_row + wide_head_dim}) {
    Config config;
    config.model.heads = cols / wide_head_dim;
    config.model.width = cols;
    const bool taken = check_takes(config);
    EXPECT_EQ(taken, cols == max_row);
    const Tensor<bf16> x(2, cols, 1), y(2, cols, 2), table(5, cols, 3);
    const Tensor<float> rstd(1, 2, 4);
    const test::Tokens tokens(2, 5, 1);
    MixTerm<bf16> term;
    term.source = x.device();
    SharingMix<bf16> mix;
    mix.g = x.device();
    EXPECT_EQ(taken, op_takes([&] {
                cuda::rms_norm_forward<bf16>(stream, y.device(), rstd.device_flat(), x.device(), 1e-6);
              }));
    EXPECT_EQ(taken, op_takes([&] { cuda::mix_forward<bf16>(stream, y.device(), {&term, 1}); }));
    EXPECT_EQ(taken, op_takes([&] {
                cuda::shared_streams_backward<bf16>(stream, {{{x.device(), y.device()}, {}}}, {&mix, 1});
              }));
    EXPECT_EQ(taken, op_takes([&] {
                cuda::embedding_forward<bf16>(stream, y.device(), tokens.device_span(), table.device());
              }));
  }
}

TEST(CudaLimits, ColumnsOfATable) {
  SKIP_WITHOUT_DEVICE();
  for (const int cols : {16, 20}) {
    Config config;
    config.model.bigram_rows = 5;
    config.model.bigram_columns = cols;
    const bool taken = check_takes(config);
    EXPECT_EQ(taken, cols % row_vector == 0);
    const Tensor<bf16> y(2, cols, 2), table(5, cols, 3);
    const test::Tokens tokens(2, 5, 1);
    const test::DeviceVector<std::int32_t> rows(test::Vector<std::int32_t>{4, 0});
    EXPECT_EQ(taken,
              op_takes([&] { cuda::embedding_forward<bf16>({}, y.device(), tokens.device_span(), table.device()); }));
    EXPECT_EQ(taken, op_takes([&] { cuda::sign_rows<bf16>({}, y.device(), table.device(), {rows.data(), 2}); }));
  }
}

TEST(CudaLimits, WidthOfAHead) {
  SKIP_WITHOUT_DEVICE();
  const test::SumStream stream;
  for (const int width : {32, 64, 96, 128, 256}) {
    Config config;
    config.model.head_dim = width;
    config.model.heads = 768 / width;
    const bool taken = std::ranges::count(attention_head_dims, width) > 0;
    EXPECT_EQ(check_takes(config), taken);
    if (taken) continue;  // which test_cuda_attention computes with
    const Mat<bf16> x = nowhere<bf16>(128, 3 * width);
    const AttentionInputs<bf16> in{x, x, x, 3, 0.1f};
    AttentionMask mask;
    mask.length = 128;
    EXPECT_FALSE(op_takes([&] { cuda::attention_forward<bf16>(stream, x, nowhere<float>(3, 128), in, mask, {}); }));
  }
}

TEST(CudaLimits, HeadsThatMustBeWide) {
  SKIP_WITHOUT_DEVICE();
  for (const int width : {64, wide_head_dim}) {
    Config config;
    config.model.head_dim = width;
    config.model.heads = 768 / width;
    Config composed = config;
    composed.model.composed_layers = {1};
    EXPECT_EQ(check_takes(composed), width == wide_head_dim);
    config.model.key_offset_layers = {1};
    EXPECT_EQ(check_takes(config), width == wide_head_dim);
    if (width == wide_head_dim) continue;  // which test_cuda_attention_projection computes with
    const Mat<bf16> x = nowhere<bf16>(128, 64), w = nowhere<bf16>(3 * 64, 64);
    Rotary<bf16> rotary;
    rotary.heads = 1;
    rotary.key_offset = true;
    EXPECT_FALSE(op_takes([&] {
      cuda::attention_projection_forward<bf16>({}, nowhere<bf16>(129, 3 * 64), x, nowhere<float>(128, 2), x, w, rotary,
                                               {}, 1e-6);
    }));
  }
}

TEST(CudaLimits, HeadsTimesTokens) {
  SKIP_WITHOUT_DEVICE();
  const test::SumStream stream;
  for (const int heads : {6, 7, 32}) {
    const int most = static_cast<int>(max_attention_rows / heads / attention_block) * attention_block;
    for (const int length : {most, most + attention_block}) {
      Config config;
      config.model.heads = heads;
      config.model.width = heads * wide_head_dim;
      config.train.length = length;
      EXPECT_EQ(check_takes(config), length == most);
      if (length == most) continue;  // gigabytes
      const Mat<bf16> x = nowhere<bf16>(length, heads * wide_head_dim);
      const Mat<float> lse = nowhere<float>(heads, length);
      const AttentionInputs<bf16> in{x, x, x, heads, 0.1f};
      AttentionMask mask;
      mask.length = length;
      EXPECT_FALSE(op_takes([&] {
        cuda::attention_backward<bf16>(stream, nowhere<float>(length, x.cols), x, x, x, lse, x, in, mask, {});
      }));
    }
  }
}

TEST(CudaLimits, KeysOfAComposedHead) {
  SKIP_WITHOUT_DEVICE();
  Config config;
  config.model.composed_layers = {1};
  config.model.composition_window = max_composition_window;
  EXPECT_TRUE(check_takes(config));  // test_cuda_attention_composition computes with it
  config.model.composition_window = max_composition_window + 1;
  EXPECT_FALSE(check_takes(config));
  const Mat<bf16> x = nowhere<bf16>(128, wide_head_dim);
  const Mat<float> w = nowhere<float>(128, 1);
  AttentionComposition<bf16> dc{{x, x, x, 1, 0.1f}, w, w, max_composition_window + 1, nullptr};
  EXPECT_FALSE(op_takes([&] { cuda::attention_composition_forward<bf16>({}, x, x, dc, {}); }));
}

TEST(CudaLimits, ColumnsOfTheLogits) {
  SKIP_WITHOUT_DEVICE();
  Config config;
  config.model.vocabulary = max_vocabulary / 128 * 128;
  EXPECT_TRUE(check_takes(config));
  config.model.vocabulary = max_vocabulary / 128 * 128 + 1;
  EXPECT_FALSE(check_takes(config));
  const int columns = (max_vocabulary / 128 + 1) * 128;
  const BlasStream stream;
  const test::Tokens targets(16, 5, 1);
  LmHeadOptions options;
  options.precision = LmHeadPrecision::working;
  test::Vector<std::byte> space(cuda::lm_head_workspace<bf16>(16, columns, 16, options.precision));
  EXPECT_FALSE(op_takes([&] {
    cuda::lm_head_loss_forward<bf16>(stream, nullptr, nowhere<bf16>(16, 16), nowhere<bf16>(columns, 16),
                                     targets.device_span(), options, space);
  }));
}

/// Nets of any size, which the check takes as they are.
TEST(CudaLimits, CoefficientNetsHaveNone) {
  SKIP_WITHOUT_DEVICE();
  const BlasStream stream;
  for (const auto& [hidden, outputs] : {std::pair(1, 1), {20, 49}, {64, 48}, {65, 49}, {4096, 200}}) {
    Config config;
    config.model.coefficient_width = hidden;
    EXPECT_TRUE(check_takes(config));
    const Tensor<bf16> u(2, 8, 1), w_in(hidden, 8, 2), z(2, hidden, 3, {}, ceil_div(hidden, 8) * 8);
    const Tensor<float> w_out(outputs, hidden, 4), bias(1, outputs, 5), c(2, outputs, 6);
    EXPECT_TRUE(op_takes([&] {
      cuda::coefficient_net_forward<bf16>(stream, c.device(), z.device(), u.device(),
                                          {w_in.device(), w_out.device(), bias.device_flat(), 1, {}});
    }));
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda
