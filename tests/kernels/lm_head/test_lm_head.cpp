#include "kernels/lm_head/lm_head.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr LmHeadOptions fp8_options{
    .softcap = 15, .precision = LmHeadPrecision::fp8, .scale_x = 2, .scale_w = 32, .scale_g = 0x1p20};

constexpr LmHeadOptions sigmoid_options{
    .softcap = 23, .kind = SoftcapKind::sigmoid, .softcap_shift = 5, .softcap_width = 7.5};

constexpr LmHeadOptions isru_options{.softcap = 15, .kind = SoftcapKind::isru};
constexpr LmHeadOptions uncapped_options{.kind = SoftcapKind::none};

/// x [length, width] in rows of `stride`; w [vocabulary, width].
struct Problem {
  int length, vocabulary, width;
  int stride = width;
  test::Vector<double> x = test::random_values(static_cast<std::size_t>(length) * stride, 1, -2, 2);
  test::Vector<double> w = test::random_values(static_cast<std::size_t>(vocabulary) * width, 2);
  test::Vector<Token> targets = random_targets();

  test::Vector<Token> random_targets() const {
    std::mt19937 generator(3);
    test::Vector<Token> tokens(length);
    for (Token& token : tokens) token = static_cast<Token>(generator() % vocabulary);
    return tokens;
  }

  /// These options with three targets and prefixes, which one token in three lacks.
  LmHeadOptions with_targets(LmHeadOptions options) {
    prefix = test::Vector<std::int32_t>(vocabulary, -1);
    for (int v = 0; v < vocabulary; ++v) {
      if (v % 3 != 0) prefix[v] = v / 2;
    }
    options.target_weights = {1, 0.5, 0.25};
    options.targets = 3;
    options.prefix_weight = 0.375;
    options.prefix = prefix;
    return options;
  }
  test::Vector<std::int32_t> prefix{};
};

struct Result {
  double loss = 0;
  test::Vector<double> d_x, d_w;
  test::Vector<double> losses;  ///< loss of each row; only naive() returns it
  double largest = 0;           ///< magnitude of the gradient of a logit before the softcap
};

/// Scratch memory aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : memory_(bytes + 64) {}
  Workspace get() { return Workspace(memory_).subspan(64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64); }

 private:
  test::Vector<std::byte> memory_;
};

template <class T>
double forward(const Problem& p, const LmHeadOptions& options) {
  const test::Vector<T> x = test::convert<T>(p.x), w = test::convert<T>(p.w);
  Scratch scratch(lm_head_workspace<T>(p.length, p.vocabulary, p.width, options.precision));
  test::Vector<double> loss(1);
  lm_head_loss_forward<T>({}, loss.data(), Mat<const T>(x.data(), p.length, p.width, p.stride),
                          Mat<const T>(w.data(), p.vocabulary, p.width), p.targets, options, scratch.get());
  return loss[0];
}

template <class T>
test::Vector<double> losses(const Problem& p, const LmHeadOptions& options) {
  const test::Vector<T> x = test::convert<T>(p.x), w = test::convert<T>(p.w);
  Scratch scratch(lm_head_workspace<T>(p.length, p.vocabulary, p.width, options.precision));
  test::Vector<T> out = test::poisoned<T>(p.length);
  lm_head_losses<T>({}, out, Mat<const T>(x.data(), p.length, p.width, p.stride),
                    Mat<const T>(w.data(), p.vocabulary, p.width), p.targets, options, scratch.get());
  return test::convert<double>(out);
}

/// Both gradients start at NaN.
template <class T>
Result backward(const Problem& p, const LmHeadOptions& options) {
  const test::Vector<T> x = test::convert<T>(p.x), w = test::convert<T>(p.w);
  test::Vector<T> d_x = test::poisoned<T>(static_cast<std::size_t>(p.length) * p.width);
  test::Vector<T> d_w = test::poisoned<T>(w.size());
  Scratch scratch(lm_head_workspace<T>(p.length, p.vocabulary, p.width, options.precision));
  test::Vector<double> loss(1);
  lm_head_loss_backward<T>({}, loss.data(), Mat<T>(d_x.data(), p.length, p.width),
                           Mat<T>(d_w.data(), p.vocabulary, p.width), Output::overwrite,
                           Mat<const T>(x.data(), p.length, p.width, p.stride),
                           Mat<const T>(w.data(), p.vocabulary, p.width), p.targets, options, scratch.get());
  return {loss[0], test::convert<double>(d_x), test::convert<double>(d_w), {}};
}

double dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// The definition, one row of logits at a time, shifted by the largest logit.
Result naive(const Problem& p, const LmHeadOptions& o) {
  const bool fp8 = o.precision == LmHeadPrecision::fp8;
  const auto quantised = [=](const test::FloatFormat& format, double scale, double value) -> double {
    return fp8 ? format.round(static_cast<float>(scale * value)) / scale : value;
  };
  test::Vector<double> x, w;
  for (int t = 0; t < p.length; ++t)
    for (int j = 0; j < p.width; ++j) x.push_back(quantised(test::e4m3, o.scale_x, p.x[t * p.stride + j]));
  for (const double value : p.w) w.push_back(quantised(test::e4m3, o.scale_w, value));
  Result result{0, test::Vector<double>(x.size()), test::Vector<double>(w.size()), {}};
  test::Vector<double> u(p.vocabulary), softmax(p.vocabulary);
  for (int t = 0; t < p.length; ++t) {
    const double* const x_t = &x[t * p.width];
    double sum = 0;
    for (int v = 0; v < p.vocabulary; ++v) {
      const double z = quantised(test::bf16, 1, dot(x_t, &w[v * p.width], p.width));
      u[v] = o.kind == SoftcapKind::tanh
                 ? std::tanh(z / o.softcap)
                 : quantised(test::bf16, 1, 1 / (1 + std::exp(-(z + o.softcap_shift) / o.softcap_width)));
    }
    const double largest = *std::max_element(u.begin(), u.end());
    for (int v = 0; v < p.vocabulary; ++v) sum += softmax[v] = std::exp(o.softcap * (u[v] - largest));
    const double before = result.loss;
    double weights = 0;
    test::Vector<double> of_targets(p.vocabulary);
    const auto add_target = [&](int target, double weight) {
      result.loss += weight * (std::log(sum) + o.softcap * (largest - u[target]));
      of_targets[target] += weight;
    };
    for (int k = 0; k < o.targets; ++k) {
      weights += o.target_weights[k];
      if (t + k < p.length) add_target(p.targets[t + k], o.target_weights[k]);
    }
    if (!o.prefix.empty() && o.prefix[p.targets[t]] >= 0) {
      weights += o.prefix_weight;
      add_target(o.prefix[p.targets[t]], o.prefix_weight);
    }
    result.losses.push_back(result.loss - before);
    const double scale = o.loss_scale == 0 ? 1.0 / p.length : o.loss_scale;
    for (int v = 0; v < p.vocabulary; ++v) {
      const double derivative =
          o.kind == SoftcapKind::tanh ? 1 - u[v] * u[v] : o.softcap / o.softcap_width * u[v] * (1 - u[v]);
      const double of_logit = (weights * softmax[v] / sum - of_targets[v]) * scale;
      const double g = quantised(test::e5m2, o.scale_g, of_logit * derivative);
      result.largest = std::max(result.largest, std::abs(g));
      for (int j = 0; j < p.width; ++j) {
        result.d_x[t * p.width + j] += g * w[v * p.width + j];
        result.d_w[v * p.width + j] += g * x_t[j];
      }
    }
  }
  return result;
}

void expect_near(const Result& actual, const Result& expected, double tolerance) {
  EXPECT_NEAR(actual.loss, expected.loss, tolerance * expected.loss);
  EXPECT_LT(test::relative_error(actual.d_x, expected.d_x), tolerance);
  EXPECT_LT(test::relative_error(actual.d_w, expected.d_w), tolerance);
}

TEST(Head, GradientsMatchFiniteDifferences) {
  for (const double softcap : {2.0, 15.0}) {
    Problem p{.length = 5, .vocabulary = 37, .width = 7};
    const LmHeadOptions options{.softcap = softcap};
    const Result result = backward<double>(p, options);
    const auto loss = [&] { return forward<double>(p, options) / p.length; };
    test::check_gradient("x", loss, p.x, result.d_x);
    test::check_gradient("w", loss, p.w, result.d_w, 1e-7, 1e-5, 259);
  }
}

TEST(Head, GradientsOfTheSigmoidMatchFiniteDifferences) {
  Problem p{.length = 5, .vocabulary = 37, .width = 7};
  LmHeadOptions options = p.with_targets(sigmoid_options);
  options.targets = 1;
  options.loss_scale = 0.3;
  const Result result = backward<double>(p, options);
  const auto loss = [&] { return options.loss_scale * forward<double>(p, options); };
  test::check_gradient("x", loss, p.x, result.d_x);
  test::check_gradient("w", loss, p.w, result.d_w, 1e-7, 1e-5, 259);
}

TEST(Head, GradientsOfIsruAndOfNoSoftcapMatchFiniteDifferences) {
  for (LmHeadOptions options : {isru_options, uncapped_options}) {
    options.softcap = 2;
    Problem p{.length = 5, .vocabulary = 37, .width = 7};
    const Result result = backward<double>(p, options);
    const auto loss = [&] { return forward<double>(p, options) / p.length; };
    test::check_gradient("x", loss, p.x, result.d_x);
    test::check_gradient("w", loss, p.w, result.d_w, 1e-7, 1e-5, 259);
  }
}

/// Loss and gradient by softcap() and its slope, in chunks of rows, with several targets, and with logits whose
/// exponential has no place in a float.
TEST(Head, IsruAndNoSoftcapFollowTheDefinition) {
  for (const LmHeadOptions& kind : {isru_options, uncapped_options}) {
    for (const double size : {1.0, 60.0}) {
      Problem p{.length = 300, .vocabulary = 101, .width = 12};
      for (double& value : p.x) value *= size;
      LmHeadOptions options = p.with_targets(kind);
      options.prefix = {};
      double loss = 0;
      for (int t = 0; t < p.length; ++t) {
        std::vector<double> logit(p.vocabulary);
        for (int v = 0; v < p.vocabulary; ++v)
          logit[v] = softcap(dot(&p.x[t * p.width], &p.w[v * p.width], p.width), options);
        const double largest = *std::max_element(logit.begin(), logit.end());
        double sum = 0;
        for (const double l : logit) sum += std::exp(l - largest);
        for (int k = 0; k < 3 && t + k < p.length; ++k)
          loss += options.target_weights[k] * (std::log(sum) + largest - logit[p.targets[t + k]]);
      }
      EXPECT_NEAR(forward<double>(p, options), loss, 1e-12 * loss);
      EXPECT_NEAR(forward<float>(p, options), loss, 2e-6 * loss);
      const Result exact = backward<double>(p, options), single = backward<float>(p, options);
      // Logits are sums in fp32 of `size` times the magnitude, and their rounding moves the softmax by as much.
      expect_near(single, exact, 2e-6 * size);
    }
  }
}

/// A bias is a further column of w beside a column of ones of x.
TEST(Head, ABiasIsAColumnOfTheWeights) {
  constexpr int length = 300, vocabulary = 101, width = 12;
  Problem with_ones{.length = length, .vocabulary = vocabulary, .width = width + 1};
  for (int t = 0; t < length; ++t) with_ones.x[t * (width + 1) + width] = 1;
  test::Vector<double> x, w, bias;
  for (int t = 0; t < length; ++t)
    x.insert(x.end(), &with_ones.x[t * (width + 1)], &with_ones.x[t * (width + 1) + width]);
  for (int v = 0; v < vocabulary; ++v) {
    const double* const row = &with_ones.w[v * (width + 1)];
    w.insert(w.end(), row, row + width);
    bias.push_back(row[width]);
  }
  const LmHeadOptions options{.softcap = 15};
  const Result expected = backward<double>(with_ones, options);
  Scratch scratch(lm_head_workspace<double>(length, vocabulary, width, options.precision));
  test::Vector<double> loss(2), losses(length), d_x(x.size()), d_w(w.size()), d_bias(vocabulary, 1);
  const Mat<const double> x_mat(x.data(), length, width), w_mat(w.data(), vocabulary, width);
  lm_head_loss_forward<double>({}, &loss[0], x_mat, w_mat, with_ones.targets, options, scratch.get(), bias);
  lm_head_losses<double>({}, losses, x_mat, w_mat, with_ones.targets, options, scratch.get(), bias);
  lm_head_loss_backward<double>({}, &loss[1], Mat<double>(d_x.data(), length, width),
                                Mat<double>(d_w.data(), vocabulary, width), Output::overwrite, x_mat, w_mat,
                                with_ones.targets, options, scratch.get(), bias, d_bias);
  for (const double sum : {loss[0], loss[1], std::accumulate(losses.begin(), losses.end(), 0.0)})
    EXPECT_NEAR(sum, expected.loss, 1e-12 * expected.loss);
  for (int v = 0; v < vocabulary; ++v) {
    EXPECT_NEAR(d_bias[v] - 1, expected.d_w[v * (width + 1) + width], 1e-14) << "it adds to the gradient";
    for (int j = 0; j < width; ++j) EXPECT_NEAR(d_w[v * width + j], expected.d_w[v * (width + 1) + j], 1e-14);
  }
  for (int t = 0; t < length; ++t) {
    for (int j = 0; j < width; ++j) EXPECT_NEAR(d_x[t * width + j], expected.d_x[t * (width + 1) + j], 1e-14);
  }
}

/// Only the last two rows lack targets: elsewhere the gradient is that of the loss. Rows of zeros leave that of w
/// alone.
TEST(Head, GradientsOfFurtherTargetsMatchFiniteDifferences) {
  for (const LmHeadOptions& kind : {LmHeadOptions{}, sigmoid_options}) {
    Problem p{.length = 6, .vocabulary = 37, .width = 7};
    LmHeadOptions options = p.with_targets(kind);
    options.loss_scale = 2;
    const std::size_t complete = 4 * 7;
    std::fill(p.x.begin() + complete, p.x.end(), 0.0);
    const Result result = backward<double>(p, options);
    test::Vector<double> x(p.x.begin(), p.x.begin() + complete);
    const auto loss = [&] {
      std::copy(x.begin(), x.end(), p.x.begin());
      return options.loss_scale * forward<double>(p, options);
    };
    test::check_gradient("x", loss, x, {result.d_x.begin(), result.d_x.begin() + complete});
    test::check_gradient("w", loss, p.w, result.d_w, 1e-7, 1e-5, 259);
  }
}

/// In the last row two of three targets are missing; their weights count before the softmax all the same.
TEST(Head, GradientOfTheLastRowCountsTheWeightsOfMissingTargets) {
  Problem p{.length = 1, .vocabulary = 3, .width = 2};
  p.targets = {1};
  LmHeadOptions options = sigmoid_options;
  options.targets = 3;
  options.target_weights = {1, 0.5, 0.25};
  options.loss_scale = 1;
  const Result result = backward<double>(p, options);
  double sum = 0, logit[3], expected[2] = {};
  for (int v = 0; v < 3; ++v) sum += std::exp(logit[v] = softcap(dot(p.x.data(), &p.w[2 * v], 2), options));
  EXPECT_NEAR(result.loss, std::log(sum) - logit[1], 1e-12);
  for (int v = 0; v < 3; ++v) {
    const double u = logit[v] / 23;
    const double g = 23 / 7.5 * u * (1 - u) * (1.75 * std::exp(logit[v]) / sum - (v == 1));
    for (int j = 0; j < 2; ++j) {
      expected[j] += g * p.w[2 * v + j];
      EXPECT_NEAR(result.d_w[2 * v + j], g * p.x[j], 1e-12);
    }
  }
  for (int j = 0; j < 2; ++j) EXPECT_NEAR(result.d_x[j], expected[j], 1e-12);
}

TEST(Head, FurtherTargetsEqualTheDefinitionAcrossChunks) {
  // With five columns, targets of a row often coincide.
  for (Problem p : {Problem{.length = 300, .vocabulary = 101, .width = 12},
                    Problem{.length = 128, .vocabulary = 5, .width = 5, .stride = 9},
                    Problem{.length = 2, .vocabulary = 2100, .width = 16}}) {
    for (const LmHeadOptions& kind : {LmHeadOptions{}, sigmoid_options}) {
      LmHeadOptions options = p.with_targets(kind);
      for (const double loss_scale : {0.0, 0.125}) {
        options.loss_scale = loss_scale;
        const Result expected = naive(p, options);
        expect_near(backward<double>(p, options), expected, 1e-13);
        expect_near(backward<float>(p, options), expected, 2e-6);
        EXPECT_EQ(forward<double>(p, options), backward<double>(p, options).loss);
      }
    }
  }
}

TEST(Head, PrefixesCountOnlyWhereTheyAre) {
  Problem p{.length = 40, .vocabulary = 64, .width = 8};
  LmHeadOptions options = p.with_targets(sigmoid_options);
  options.targets = 1;
  const double with = forward<double>(p, options);
  std::ranges::fill(p.prefix, -1);
  const Result without = backward<double>(p, options), plain = backward<double>(p, sigmoid_options);
  EXPECT_GT(with, without.loss);
  EXPECT_EQ(without.loss, plain.loss);
  EXPECT_EQ(without.d_x, plain.d_x);
}

TEST(Head, LossScaleIsTheFactorOfTheSummedLoss) {
  const Problem p{.length = 12, .vocabulary = 40, .width = 8};
  const Result mean = backward<double>(p, {});
  Result scaled = backward<double>(p, {.loss_scale = 3});
  EXPECT_EQ(scaled.loss, mean.loss);
  for (double& value : scaled.d_x) value /= 3 * 12;
  for (double& value : scaled.d_w) value /= 3 * 12;
  expect_near(scaled, mean, 1e-14);
}

TEST(Head, SoftcapIsTheLogit) {
  EXPECT_NEAR(softcap(-4, {.softcap = 15}), 15 * std::tanh(-4.0 / 15), 1e-14);
  EXPECT_NEAR(softcap(-4, sigmoid_options), 23 / (1 + std::exp(-1 / 7.5)), 1e-14);
  EXPECT_NEAR(softcap(1e9, sigmoid_options), 23, 1e-14);
  EXPECT_NEAR(softcap(-1e9, sigmoid_options), 0, 1e-14);
}

TEST(Head, EqualsTheDefinitionAcrossChunks) {
  // 300 rows are two full chunks and a part; 2100 columns are two blocks of the sum and a part.
  for (const Problem& p : {Problem{.length = 300, .vocabulary = 101, .width = 12},
                           Problem{.length = 128, .vocabulary = 96, .width = 5, .stride = 9},
                           Problem{.length = 3, .vocabulary = 2100, .width = 16, .stride = 20}}) {
    for (const double softcap : {4.0, 30.0}) {
      const Result expected = naive(p, {.softcap = softcap});
      expect_near(backward<double>(p, {.softcap = softcap}), expected, 1e-13);
      const Result single = backward<float>(p, {.softcap = softcap});
      expect_near(single, expected, 2e-6);
      EXPECT_NEAR(single.loss, expected.loss, 1e-6 * expected.loss);
      EXPECT_LT(test::relative_error(losses<double>(p, {.softcap = softcap}), expected.losses), 1e-13);
      EXPECT_LT(test::relative_error(losses<float>(p, {.softcap = softcap}), expected.losses), 1e-6);
    }
  }
}

TEST(Head, LargestGradientIsThatOfTheDefinition) {
  const Problem p{.length = 300, .vocabulary = 70, .width = 9};
  const test::Vector<double> x = test::convert<double>(p.x), w = test::convert<double>(p.w);
  for (LmHeadOptions options : {LmHeadOptions{}, sigmoid_options}) {
    for (const double loss_scale : {0.0, 3.0}) {
      options.loss_scale = loss_scale;
      Scratch scratch(lm_head_workspace<double>(p.length, p.vocabulary, p.width, options.precision));
      const auto found = [&](double start) {
        test::Vector<double> maximum{start};
        lm_head_largest_gradient<double>({}, maximum.data(), Mat<const double>(x.data(), p.length, p.width, p.stride),
                                         Mat<const double>(w.data(), p.vocabulary, p.width), p.targets, options,
                                         scratch.get());
        return maximum[0];
      };
      const double expected = naive(p, options).largest;
      EXPECT_NEAR(found(0), expected, 1e-12 * expected);
      EXPECT_EQ(found(2 * expected), 2 * expected);
    }
  }
}

TEST(Head, ForwardGivesTheLossOfBackward) {
  const Problem p{.length = 131, .vocabulary = 99, .width = 12};
  for (const LmHeadOptions& options : {LmHeadOptions{}, fp8_options}) {
    EXPECT_EQ(forward<double>(p, options), backward<double>(p, options).loss);
    EXPECT_EQ(forward<float>(p, options), backward<float>(p, options).loss);
  }
}

TEST(Head, LossAndWeightGradientAccumulate) {
  const Problem p{.length = 140, .vocabulary = 65, .width = 8};
  const test::Vector<double> start = test::random_values(p.w.size(), 5);
  for (const LmHeadOptions& options : {LmHeadOptions{}, fp8_options}) {
    test::Vector<double> d_x(p.x.size()), d_w = start, expected = start;
    test::Vector<double> loss{1000};
    Scratch scratch(lm_head_workspace<double>(p.length, p.vocabulary, p.width, options.precision));
    lm_head_loss_backward<double>(
        {}, loss.data(), Mat<double>(d_x.data(), p.length, p.width), Mat<double>(d_w.data(), p.vocabulary, p.width),
        Output::accumulate, Mat<const double>(p.x.data(), p.length, p.width),
        Mat<const double>(p.w.data(), p.vocabulary, p.width), p.targets, options, scratch.get());
    const Result once = backward<double>(p, options);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += once.d_w[i];
    EXPECT_LT(test::relative_error(d_w, expected), 1e-15);
    EXPECT_EQ(d_x, once.d_x);
    EXPECT_NEAR(loss[0], 1000 + once.loss, 1e-12 * loss[0]);
    lm_head_loss_forward<double>({}, loss.data(), Mat<const double>(p.x.data(), p.length, p.width),
                                 Mat<const double>(p.w.data(), p.vocabulary, p.width), p.targets, options,
                                 scratch.get());
    EXPECT_NEAR(loss[0], 1000 + 2 * once.loss, 1e-12 * loss[0]);
  }
}

TEST(Head, ZeroWeightsGiveTheUniformLossOverAllColumns) {
  Problem p{.length = 3, .vocabulary = 50304, .width = 4};
  std::fill(p.w.begin(), p.w.end(), 0.0);
  for (const LmHeadOptions& options : {LmHeadOptions{}, LmHeadOptions{.softcap = 30}, fp8_options}) {
    EXPECT_NEAR(forward<double>(p, options) / p.length, std::log(50304.0), 1e-12);
    EXPECT_NEAR(forward<float>(p, options) / p.length, std::log(50304.0), 1e-6);
  }
}

TEST(Head, PaddedColumnsCountInLossAndGradient) {
  Problem p{.length = 4, .vocabulary = 64, .width = 4};
  for (Token& target : p.targets) target %= 50;
  const double before = forward<double>(p, {});
  p.vocabulary = 65;  // one more column, of logit 0, that is never a target
  p.w.resize(65 * 4, 0.0);
  const Result after = backward<double>(p, {});
  EXPECT_GT(after.loss, before);
  for (int j = 0; j < p.width; ++j) EXPECT_NE(after.d_w[64 * 4 + j], 0);
}

TEST(Head, SaturatedLogitsStayFinite) {
  Problem p{.length = 20, .vocabulary = 200, .width = 8};
  for (double& value : p.x) value *= 100;
  for (LmHeadOptions options : {LmHeadOptions{}, sigmoid_options}) {
    for (const double softcap : {15.0, 30.0, 75.0}) {
      options.softcap = softcap;
      const Result expected = naive(p, options);
      expect_near(backward<double>(p, options), expected, 1e-12);
      EXPECT_NEAR(forward<float>(p, options), expected.loss, 1e-6 * expected.loss);
      for (const double g : backward<float>(p, options).d_x) ASSERT_TRUE(std::isfinite(g));
    }
  }
}

TEST(Head, Fp8EqualsTheEmulationByTables) {
  for (Problem p : {Problem{.length = 150, .vocabulary = 100, .width = 24},
                    Problem{.length = 9, .vocabulary = 1500, .width = 16, .stride = 17}}) {
    p.x[3] = 300;  // saturates: 2 * 300 > 448
    p.w[5] = -20;  // saturates: 32 * 20 > 448
    LmHeadOptions further = fp8_options;
    further.kind = SoftcapKind::sigmoid;
    further.softcap_shift = 5;
    further.softcap_width = 7.5;
    further.loss_scale = 0.01;
    for (const LmHeadOptions& options : {fp8_options, p.with_targets(further)}) {
      const Result expected = naive(p, options);
      expect_near(backward<double>(p, options), expected, 1e-12);
      // In fp32 a value within rounding error of a midpoint may fall to the other side.
      const Result single = backward<float>(p, options);
      EXPECT_NEAR(single.loss, expected.loss, 1e-6 * expected.loss);
      EXPECT_LT(test::relative_error(single.d_x, expected.d_x), 1e-3);
      EXPECT_LT(test::relative_error(single.d_w, expected.d_w), 1e-3);
      LmHeadOptions working = options;
      working.precision = LmHeadPrecision::working;
      const Result unrounded = backward<double>(p, working);
      EXPECT_GT(test::relative_error(unrounded.d_x, expected.d_x), 1e-2) << "rounding must be visible";
    }
  }
}

TEST(Head, NotANumberReachesTheLoss) {
  Problem p{.length = 2, .vocabulary = 64, .width = 4};
  p.x[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(forward<float>(p, {})));
  EXPECT_TRUE(std::isnan(forward<float>(p, fp8_options)));
  EXPECT_TRUE(std::isnan(forward<float>(p, isru_options)));
  EXPECT_TRUE(std::isnan(forward<float>(p, uncapped_options)));
}

}  // namespace
}  // namespace nanorun::kernels::portable
