#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/lm_head/lm_head_softcap.hpp"
#include "tests/cuda/softcap_options.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::further;
using test::isru;
using test::logit;
using test::plain;
using test::sure_logits;
using test::uncapped;

constexpr double scale = 64;

/// Logits of a few units, restored before each run.
struct Problem {
  Problem(int rows, int cols)
      : rows(rows),
        cols(cols),
        logits(test::Tensor<bf16>::of(rows, cols, sure_logits(static_cast<std::size_t>(rows) * cols, further))),
        targets(rows, cols, 2),
        z(static_cast<std::size_t>(rows) * cols),
        loss(rows) {}

  struct Result {
    test::Vector<std::uint8_t> g;  ///< [rows, cols]
    test::Vector<float> loss;
  };
  void restore() {
    test::cuda_check(cudaMemcpy(z.data(), logits.device().data, z.size() * sizeof(bf16), cudaMemcpyDeviceToDevice));
    test::cuda_check(cudaMemset(loss.data(), 0xFF, loss.size() * sizeof(float)));
  }
  Softcap in(const LmHeadOptions& options) { return {{z.data(), rows, cols}, targets.device_span(), options}; }
  Result run(const LmHeadOptions& options) {
    restore();
    const Mat<e5m2> g = softcap_gradient_fp8({}, loss.data(), in(options), scale);
    Result r{test::Vector<std::uint8_t>(g.size()), loss.host()};
    test::cuda_check(cudaMemcpy2D(r.g.data(), cols, g.data, g.ld, cols, rows, cudaMemcpyDeviceToHost));
    return r;
  }

  /// The row's sum of e^logit.
  double sum(int i, const LmHeadOptions& options) {
    double sum = 0;
    for (int j = 0; j < cols; ++j) sum += std::exp(logit(logits.host().row(i)[j], options));
    return sum;
  }
  /// Calls body(column, weight) for the row's targets.
  template <class Body>
  void for_targets(int i, const LmHeadOptions& options, const Body& body) const {
    for (int k = 0; k < options.targets && i + k < rows; ++k) body(targets.host[i + k], options.target_weights[k]);
  }

  int rows, cols;
  test::Tensor<bf16> logits;
  test::Tokens targets;
  test::DeviceVector<bf16> z;
  test::DeviceVector<float> loss;
};

/// d logit / d z
double derivative(double z, const LmHeadOptions& o) {
  if (o.kind == SoftcapKind::none) return 1;
  if (o.kind == SoftcapKind::isru) return std::pow(1 + z / o.softcap * z / o.softcap, -1.5);
  const double share = logit(z, o) / o.softcap;  // tanh, or a sigmoid
  return o.kind == SoftcapKind::tanh ? 1 - share * share : o.softcap / o.softcap_width * share * (1 - share);
}

/// Loss and gradient of each row.
void compare(Problem& p, const LmHeadOptions& options) {
  const Problem::Result r = p.run(options);
  double weights = 0;
  for (int k = 0; k < options.targets; ++k) weights += options.target_weights[k];
  std::size_t wrong = 0;
  for (int i = 0; i < p.rows; ++i) {
    const float* const z = p.logits.host().row(i);
    const double sum = p.sum(i, options);
    std::vector<double> of_logit(p.cols);
    for (int j = 0; j < p.cols; ++j) of_logit[j] = weights * std::exp(logit(z[j], options)) / sum;
    double loss = 0;
    p.for_targets(i, options, [&](int column, double weight) {
      loss += weight * (std::log(sum) - logit(z[column], options));
      of_logit[column] -= weight;
    });
    ASSERT_NEAR(r.loss[i], loss, 1e-5 * (1 + std::abs(loss))) << "row " << i;
    for (int j = 0; j < p.cols; ++j) {
      // Within half a step of e5m2, 2^-3 of the value, or 2^-17 where it is subnormal, and the rounding before.
      const double g = scale * of_logit[j] * derivative(z[j], options);
      const double found = test::e5m2.value(r.g[static_cast<std::size_t>(i) * p.cols + j]);
      wrong += !(std::abs(found - g) <= (0x1p-3 + 0x1p-7) * std::abs(g) + 0x1p-17);
    }
  }
  EXPECT_EQ(wrong, 0u);
}

void expect_losses(const Problem& p, const test::Vector<float>& losses) {
  const test::Vector<float> got = p.loss.host();
  for (int i = 0; i < p.rows; ++i) ASSERT_NEAR(got[i], losses[i], 1e-5 * (1 + std::abs(losses[i]))) << "row " << i;
}

/// Without a gradient, and with one in bf16, the losses are those beside one in e5m2, which compare() checks. The
/// gradients differ by their rounding.
void compare_formats(Problem& p, const LmHeadOptions& options) {
  const Problem::Result fp8 = p.run(options);
  p.restore();
  softcap_loss({}, p.loss.data(), p.in(options));
  expect_losses(p, fp8.loss);
  const test::Vector<bf16> left = p.z.host();
  const float* const logits = p.logits.host().data;
  EXPECT_TRUE(std::equal(left.begin(), left.end(), logits, [](bf16 a, float b) { return test::to_float(a) == b; }));
  p.restore();
  softcap_gradient({}, p.loss.data(), p.in(options), scale);
  expect_losses(p, fp8.loss);
  const test::Vector<bf16> gradient = p.z.host();
  std::size_t wrong = 0;
  for (std::size_t k = 0; k < gradient.size(); ++k) {
    const double g = test::to_float(gradient[k]);
    wrong += !(std::abs(test::e5m2.value(fp8.g[k]) - g) <= (0x1p-3 + 0x1p-7) * std::abs(g) + 0x1p-17);
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(CudaHeadSoftcap, LossAndGradientOfEachRow) {
  SKIP_WITHOUT_DEVICE();
  LmHeadOptions rounded = further;
  rounded.precision = LmHeadPrecision::fp8;
  for (const auto& [rows, cols] : {std::pair{1, 8}, {16, 16}, {304, 4112}, {144, 112 * 1008}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(cols) + " columns");
    Problem p(rows, cols);
    for (const LmHeadOptions& options : {plain, further, rounded, isru, uncapped}) compare(p, options);
  }
}

TEST(CudaHeadSoftcap, LossAloneAndGradientInBf16) {
  SKIP_WITHOUT_DEVICE();
  for (const int cols : {4112, 112 * 1008}) {
    SCOPED_TRACE(std::to_string(cols) + " columns");
    Problem p(48, cols);
    for (const LmHeadOptions& options : {plain, further, isru, uncapped}) compare_formats(p, options);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda
