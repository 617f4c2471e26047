#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/lm_head/lm_head.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

constexpr LmHeadOptions working{};
constexpr LmHeadOptions fp8{.precision = LmHeadPrecision::fp8, .scale_x = 2, .scale_w = 512, .scale_g = 0x1p19};

/// Three targets and prefixes under a sigmoid; Problem adds the table.
LmHeadOptions further(LmHeadOptions options) {
  options.softcap = 23;
  options.kind = SoftcapKind::sigmoid;
  options.softcap_shift = 5;
  options.softcap_width = 7.5;
  options.target_weights = {1, 0.5, 0.25};
  options.targets = 3;
  options.prefix_weight = 0.375;
  return options;
}

struct Result {
  double loss = 0;
  test::Vector<float> d_x, d_w;
};

/// x [length, width] and its targets; w [vocabulary, width]: logits of a few units.
struct Problem {
  Problem(int length, int vocabulary, int width, int pad = 0)
      : x(length, width, 1, {-2, 2}, width + pad),
        w(vocabulary, width, 2, {-0.1f, 0.1f}),
        targets(length, vocabulary, 3),
        prefix(prefixes(vocabulary)),
        device_prefix(prefix) {}

  static test::Vector<std::int32_t> prefixes(int vocabulary) {
    test::Vector<std::int32_t> prefix(vocabulary, -1);
    for (int v = 0; v < vocabulary; ++v) {
      if (v % 3 != 0) prefix[v] = v / 2;
    }
    return prefix;
  }
  LmHeadOptions for_host(LmHeadOptions options) const {
    if (options.prefix_weight > 0) options.prefix = prefix;
    return options;
  }
  LmHeadOptions for_device(LmHeadOptions options) const {
    if (options.prefix_weight > 0) options.prefix = {device_prefix.data(), device_prefix.size()};
    return options;
  }

  int length() { return x.host().rows; }
  int vocabulary() { return w.host().rows; }
  int width() { return w.host().cols; }

  test::Tensor<bf16> x, w;
  test::Tokens targets;
  test::Vector<std::int32_t> prefix;
  test::DeviceVector<std::int32_t> device_prefix;
};

double forward(Problem& p, const LmHeadOptions& options) {
  const test::BlasStream stream;
  const test::DeviceSum loss;
  const test::DeviceVector<std::byte> scratch(
      lm_head_workspace<bf16>(p.length(), p.vocabulary(), p.width(), options.precision));
  lm_head_loss_forward<bf16>(stream, loss.data(), p.x.device(), p.w.device(), p.targets.device_span(),
                             p.for_device(options), {scratch.data(), scratch.size()});
  return loss.added();
}

test::Vector<float> losses(Problem& p, const LmHeadOptions& options) {
  const test::BlasStream stream;
  const test::DeviceVector<float> out(test::poisoned<float>(p.length()));
  const test::DeviceVector<std::byte> scratch(
      lm_head_workspace<bf16>(p.length(), p.vocabulary(), p.width(), options.precision));
  lm_head_losses<bf16>(stream, {out.data(), out.size()}, p.x.device(), p.w.device(), p.targets.device_span(), options,
                       {scratch.data(), scratch.size()});
  return out.host();
}

/// Both gradients start at NaN; d_w is added to `start` where that is given.
Result backward(Problem& p, const LmHeadOptions& options, const test::Vector<float>& start = {}) {
  const test::BlasStream stream;
  const test::DeviceSum loss;
  const test::DeviceVector<std::byte> scratch(
      lm_head_workspace<bf16>(p.length(), p.vocabulary(), p.width(), options.precision));
  const auto d_x = test::Tensor<bf16>::poisoned(p.length(), p.width());
  const test::DeviceVector<float> sums(start.empty() ? test::poisoned<float>(p.w.host().size()) : start);
  lm_head_loss_backward<bf16>(stream, loss.data(), d_x.device(), Mat<float>(sums.data(), p.vocabulary(), p.width()),
                              accumulate_if(!start.empty()), p.x.device(), p.w.device(), p.targets.device_span(),
                              p.for_device(options), {scratch.data(), scratch.size()});
  return {loss.added(), d_x.device_values(), sums.host()};
}

Result portable_backward(Mat<const float> x, Mat<const float> w, Vec<const Token> targets,
                         const LmHeadOptions& options) {
  Result result;
  test::Vector<double> loss(1);
  result.d_x = test::poisoned<float>(x.size());
  result.d_w = test::poisoned<float>(w.size());
  test::Vector<std::byte> memory(portable::lm_head_workspace<float>(x.rows, w.rows, x.cols, options.precision) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  portable::lm_head_loss_backward<float>({}, loss.data(), Mat<float>(result.d_x.data(), x.rows, x.cols),
                                         Mat<float>(result.d_w.data(), w.rows, w.cols), Output::overwrite, x, w,
                                         targets, options, Workspace(memory).subspan(skip));
  result.loss = loss[0];
  return result;
}

Result portable_backward(Problem& p, const LmHeadOptions& options) {
  return portable_backward(p.x.host(), p.w.host(), p.targets.host, p.for_host(options));
}

/// Logits of size s carry a rounding error of about 2^-9 s / sqrt(3), and so do the softmax and the gradients, relative
/// to themselves; here s is 2, the product of the gradient's own rounding and the one of d_x small beside it. The
/// errors of a loss average out over the columns but for that of the target.
constexpr double bf16_norm = 8e-3, bf16_loss = 2e-4;

/// Against the emulation of Fp8 what differs is what the order of a sum can change: a logit, rounded to bf16, and a
/// gradient, rounded to e5m2, may fall to the other side.
constexpr double fp8_norm = 1e-2;

void expect_near(const Result& actual, const Result& expected, double norm) {
  EXPECT_NEAR(actual.loss, expected.loss, bf16_loss * expected.loss);
  EXPECT_LT(test::relative_error(actual.d_x, expected.d_x), norm);
  EXPECT_LT(test::relative_error(actual.d_w, expected.d_w), norm);
}

/// Several chunks of rows, and more columns than a launch sums at a time.
TEST(CudaHead, ABiasMatchesThePortableOne) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [length, vocabulary] : {std::pair{300, 104}, {17000, 128}, {64, 20000}}) {
    SCOPED_TRACE(vocabulary);
    constexpr int width = 64;
    test::Tensor<bf16> x(length, width, 1), w(vocabulary, width, 2, {-0.25, 0.25});
    test::Tensor<float> bias(1, vocabulary, 3), d_bias(1, vocabulary, 4);
    const test::Tokens targets(length, vocabulary, 5);
    const LmHeadOptions options{.softcap = 15, .loss_scale = 1};
    const test::BlasStream stream;
    const test::DeviceSum loss, loss_forward;
    const std::size_t bytes = lm_head_workspace<bf16>(length, vocabulary, width, options.precision);
    const test::DeviceVector<std::byte> scratch(bytes);
    const auto d_x = test::Tensor<bf16>::poisoned(length, width);
    const auto d_w = test::Tensor<float>::poisoned(vocabulary, width);
    lm_head_loss_forward<bf16>(stream, loss_forward.data(), x.device(), w.device(), targets.device_span(), options,
                               {scratch.data(), bytes}, bias.device_flat());
    lm_head_loss_backward<bf16>(stream, loss.data(), d_x.device(), d_w.device(), Output::overwrite, x.device(),
                                w.device(), targets.device_span(), options, {scratch.data(), bytes}, bias.device_flat(),
                                d_bias.device_flat());

    test::Vector<std::byte> memory(portable::lm_head_workspace<float>(length, vocabulary, width, options.precision) +
                                   64);
    const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    test::Vector<double> host_loss(1);
    test::Vector<float> host_d_x(x.host().size()), host_d_w(w.host().size());
    portable::lm_head_loss_backward<float>({}, host_loss.data(), Mat<float>(host_d_x.data(), length, width),
                                           Mat<float>(host_d_w.data(), vocabulary, width), Output::overwrite, x.host(),
                                           w.host(), targets.host, options, Workspace(memory).subspan(skip),
                                           bias.host_flat(), d_bias.host_flat());
    EXPECT_NEAR(loss.added(), host_loss[0], bf16_loss * host_loss[0]);
    EXPECT_NEAR(loss_forward.added(), host_loss[0], bf16_loss * host_loss[0]);
    const test::Vector<float> host_d_bias(d_bias.host_flat().begin(), d_bias.host_flat().end());
    EXPECT_LT(test::relative_error(d_x.device_values(), host_d_x), bf16_norm);
    EXPECT_LT(test::relative_error(d_w.device_values(), host_d_w), bf16_norm);
    EXPECT_LT(test::relative_error(d_bias.device_values(), host_d_bias), bf16_norm);
  }
}

TEST(CudaHead, WorkingPrecisionMatchesThePortableOne) {
  SKIP_WITHOUT_DEVICE();
  for (auto [length, vocabulary, width, pad] :
       {std::array{1, 8, 8, 0}, {8, 8, 8, 0}, {37, 136, 40, 8}, {300, 4104, 64, 0}, {12300, 72, 24, 0}}) {
    SCOPED_TRACE(std::to_string(length) + " rows, " + std::to_string(vocabulary) + " columns");
    Problem p(length, vocabulary, width, pad);
    for (const double softcap : {15.0, 30.0}) {
      const LmHeadOptions options{.softcap = softcap};
      expect_near(backward(p, options), portable_backward(p, options), bf16_norm);
    }
  }
}

TEST(CudaHead, FurtherTargetsMatchThePortableOnes) {
  SKIP_WITHOUT_DEVICE();
  // With eight columns, targets of a row often coincide. The last shape has two chunks.
  for (auto [length, vocabulary, width] :
       {std::array{1, 8, 8}, {64, 8, 8}, {37, 136, 40}, {300, 4104, 64}, {12300, 72, 24}}) {
    SCOPED_TRACE(std::to_string(length) + " rows, " + std::to_string(vocabulary) + " columns");
    Problem p(length, vocabulary, width);
    LmHeadOptions tanh = further(working);
    tanh.kind = SoftcapKind::tanh;
    LmHeadOptions sum = further(working);
    sum.loss_scale = 0.125;
    LmHeadOptions sigmoid = sum;
    sigmoid.targets = 1;
    sigmoid.prefix_weight = 0;
    for (const LmHeadOptions& options : {tanh, sum, sigmoid}) {
      expect_near(backward(p, options), portable_backward(p, options), bf16_norm);
      const double loss = portable_backward(p, options).loss;
      EXPECT_NEAR(forward(p, options), loss, bf16_loss * loss);
    }
  }
}

TEST(CudaHead, FurtherTargetsInFp8MatchTheEmulation) {
  SKIP_WITHOUT_DEVICE();
  for (auto [length, vocabulary, width] : {std::array{48, 144, 32}, {304, 4112, 64}, {12304, 80, 32}}) {
    SCOPED_TRACE(std::to_string(length) + " rows, " + std::to_string(vocabulary) + " columns");
    Problem p(length, vocabulary, width);
    LmHeadOptions options = further(fp8);
    expect_near(backward(p, options), portable_backward(p, options), fp8_norm);
    options.loss_scale = 1;
    options.scale_g = 448 / 0.75;
    expect_near(backward(p, options), portable_backward(p, options), fp8_norm);
  }
}

TEST(CudaHead, Fp8MatchesTheEmulation) {
  SKIP_WITHOUT_DEVICE();
  for (auto [length, vocabulary, width, pad] :
       {std::array{16, 16, 16, 0}, {48, 144, 32, 8}, {304, 4112, 64, 0}, {12304, 80, 32, 0}}) {
    SCOPED_TRACE(std::to_string(length) + " rows, " + std::to_string(vocabulary) + " columns");
    Problem p(length, vocabulary, width, pad);
    const Result result = backward(p, fp8), emulated = portable_backward(p, fp8);
    expect_near(result, emulated, fp8_norm);
    const Result exact = portable_backward(p, working);
    EXPECT_GT(test::relative_error(emulated.d_x, exact.d_x), 3e-2) << "the rounding must be visible";
    EXPECT_LT(test::relative_error(result.d_x, emulated.d_x), 0.5 * test::relative_error(emulated.d_x, exact.d_x));
    EXPECT_LT(test::relative_error(result.d_w, emulated.d_w), 0.5 * test::relative_error(emulated.d_w, exact.d_w));
  }
}

TEST(CudaHead, SaturatesOnConversion) {
  SKIP_WITHOUT_DEVICE();
  Problem p(32, 64, 32);
  LmHeadOptions options = fp8;
  options.scale_x = 1000;   // beyond 448 for most of x
  options.scale_w = 10000;  // and of w
  options.scale_g = 0x1p24;
  // Saturated operands give logits of many units, whose rounding to bf16 moves the gradients further.
  expect_near(backward(p, options), portable_backward(p, options), 3 * fp8_norm);
}

/// The recipe's shape. All rows but 192 of x are zero, so that the portable implementation on these rows alone gives
/// their d_x and the whole d_w; the others lose ln V each.
TEST(CudaHead, RecipeShape) {
  SKIP_WITHOUT_DEVICE();
  constexpr int length = 49152, vocabulary = 50304, width = 768, used = 192;
  Problem p(length, vocabulary, width);
  Mat<float> x = p.x.host();
  test::Vector<float> kept;
  test::Vector<Token> kept_targets;
  for (int i = 0; i < length; ++i) {
    if (i % (length / used) == 7) {
      kept.insert(kept.end(), x.row(i), x.row(i) + width);
      kept_targets.push_back(p.targets.host[i]);
    } else {
      test::cuda_check(cudaMemset(p.x.device().row(i), 0, width * sizeof(bf16)));
    }
  }
  const double fewer = static_cast<double>(used) / length;
  for (LmHeadOptions options : {working, fp8}) {
    const Result result = backward(p, options);
    if (options.precision == LmHeadPrecision::fp8) options.scale_g *= fewer;  // the same gradients in e5m2
    Result expected = portable_backward({kept.data(), used, width}, p.w.host(), kept_targets, options);
    expected.loss += (length - used) * std::log(static_cast<double>(vocabulary));
    for (float& value : expected.d_x) value *= static_cast<float>(fewer);
    for (float& value : expected.d_w) value *= static_cast<float>(fewer);
    Result sample{result.loss, {}, result.d_w};
    for (int i = 7; i < length; i += length / used) {
      const float* const row = result.d_x.data() + static_cast<std::size_t>(i) * width;
      sample.d_x.insert(sample.d_x.end(), row, row + width);
    }
    expect_near(sample, expected, options.precision == LmHeadPrecision::fp8 ? fp8_norm : bf16_norm);
    for (const float value : result.d_x) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(CudaHead, ForwardGivesTheLossOfBackward) {
  SKIP_WITHOUT_DEVICE();
  Problem p(144, 272, 48);
  for (const LmHeadOptions& options : {working, fp8}) {
    const double loss = forward(p, options);
    EXPECT_NEAR(loss, backward(p, options).loss, 1e-6 * loss);  // another algorithm may have been chosen
    EXPECT_NEAR(loss, portable_backward(p, options).loss, bf16_loss * loss);
    double sum = 0;
    for (const float of_row : losses(p, options)) sum += of_row;
    EXPECT_NEAR(sum, loss, 1e-6 * loss);
  }
}

/// Beside a target's logit of a few units, rounded to bf16, the other errors of a loss are small.
TEST(CudaHead, LossOfEachRow) {
  SKIP_WITHOUT_DEVICE();
  for (const int length : {1, 136, 12300}) {
    Problem p(length, 272, 48);
    test::Vector<float> expected(length);
    test::Vector<std::byte> memory(portable::lm_head_workspace<float>(length, 272, 48, LmHeadPrecision::working) + 64);
    const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    portable::lm_head_losses<float>({}, expected, Mat<const float>(p.x.host()), Mat<const float>(p.w.host()),
                                    p.targets.host, working, Workspace(memory).subspan(skip));
    EXPECT_LT(test::relative_error(losses(p, working), expected), 2e-3);
  }
}

/// To the rounding of z and of its gradient to bf16.
TEST(CudaHead, LargestGradient) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  for (const int length : {1, 136, 12300}) {
    Problem p(length, 272, 48);
    const std::size_t bytes = portable::lm_head_workspace<float>(length, 272, 48, LmHeadPrecision::working);
    test::Vector<std::byte> memory(bytes + 64);
    const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    float expected = 0;
    portable::lm_head_largest_gradient<float>({}, &expected, Mat<const float>(p.x.host()), Mat<const float>(p.w.host()),
                                              p.targets.host, working, Workspace(memory).subspan(skip));
    const test::DeviceVector<float> maximum(test::Vector<float>{0});
    const test::DeviceVector<std::byte> scratch(lm_head_workspace<bf16>(length, 272, 48, LmHeadPrecision::working));
    lm_head_largest_gradient<bf16>(stream, maximum.data(), p.x.device(), p.w.device(), p.targets.device_span(), working,
                                   {scratch.data(), scratch.size()});
    EXPECT_NEAR(maximum.host()[0], expected, 0.01 * expected);
  }
}

TEST(CudaHead, WeightGradientAccumulates) {
  SKIP_WITHOUT_DEVICE();
  Problem p(144, 80, 48);
  for (const LmHeadOptions& options : {working, fp8}) {
    const auto start = test::convert<float>(test::random_values(p.w.host().size(), 5, -0.01, 0.01));
    const Result once = backward(p, options), added = backward(p, options, start);
    test::Vector<float> difference(start.size());
    for (std::size_t i = 0; i < start.size(); ++i) difference[i] = added.d_w[i] - start[i];
    EXPECT_LT(test::relative_error(difference, once.d_w), 1e-5);
  }
}

TEST(CudaHead, ZeroWeightsGiveTheUniformLossOverAllColumns) {
  SKIP_WITHOUT_DEVICE();
  Problem p(16, 50304, 16);
  test::cuda_check(cudaMemset(p.w.device().data, 0, p.w.device().size() * sizeof(bf16)));
  for (const LmHeadOptions& options : {working, fp8}) {
    EXPECT_NEAR(forward(p, options) / 16, std::log(50304.0), 1e-5);
  }
}

TEST(CudaHead, SaturatedLogitsStayFinite) {
  SKIP_WITHOUT_DEVICE();
  Problem p(32, 256, 64);
  test::Vector<bf16> large;
  for (const float value : p.x.host_flat()) large.push_back(test::from_float<bf16>(1000 * value));
  test::cuda_check(cudaMemcpy(p.x.device().data, large.data(), large.size() * sizeof(bf16), cudaMemcpyHostToDevice));
  for (const double softcap : {15.0, 75.0}) {
    const Result result = backward(p, {.softcap = softcap});
    EXPECT_TRUE(std::isfinite(result.loss));
    for (const float value : result.d_x) ASSERT_TRUE(std::isfinite(value));
    for (const float value : result.d_w) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(CudaHead, NotANumberReachesTheLoss) {
  SKIP_WITHOUT_DEVICE();
  Problem p(16, 64, 16);
  test::cuda_check(cudaMemset(p.x.device().row(3) + 5, 0xFF, sizeof(bf16)));
  EXPECT_TRUE(std::isnan(forward(p, working)));
  EXPECT_TRUE(std::isnan(forward(p, fp8)));
}

TEST(CudaHead, RefusesOddSizes) {
  SKIP_WITHOUT_DEVICE();
  Problem odd_vocabulary(16, 60, 16), odd_length(8, 64, 16);
  EXPECT_THROW(forward(odd_vocabulary, working), std::invalid_argument);
  EXPECT_THROW(forward(odd_length, fp8), std::invalid_argument);
  EXPECT_NO_THROW(forward(odd_length, working));
}

}  // namespace
}  // namespace nanorun::kernels::cuda
