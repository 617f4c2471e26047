// Backward attention on CUDA where the values have a factor, beside attention without one.

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "tests/cuda/device_mask.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::everything;
using test::Tensor;

struct Case {
  std::string name;
  int tokens, heads;
  std::vector<int> document_begins;
  int head_dim = 128;
  bool paired = false;

  int width() const { return heads * head_dim; }
  int token_rows() const { return paired ? 2 : 1; }
  OwnedMask mask() const {
    return test::documents_mask(tokens, document_begins, WindowKind::token, everything, token_rows());
  }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Gradients {
  Tensor<float> d_q;
  Tensor<bf16> d_k, d_v;
  Tensor<float> of_factor;

  explicit Gradients(const Case& c)
      : d_q(Tensor<float>::poisoned(c.tokens, c.width())),
        d_k(Tensor<bf16>::poisoned(c.tokens, c.width())),
        d_v(Tensor<bf16>::poisoned(c.tokens, c.width())),
        of_factor(Tensor<float>::of(1, 1, {0.5f})) {}
};

struct Problem {
  Case c;
  OwnedMask host_mask;
  test::DeviceMask mask;
  Tensor<bf16> q, k, v, d_y, y;
  Tensor<float> lse;
  DeviceVector<std::byte> workspace;
  test::SumStream stream;

  explicit Problem(const Case& c)
      : c(c),
        host_mask(c.mask()),
        mask(host_mask.view()),
        q(c.tokens, c.width(), 1, {-2, 2}),
        k(c.tokens, c.width(), 2, {-2, 2}),
        v(c.tokens, c.width(), 3, {-2, 2}),
        d_y(c.tokens, c.width(), 4),
        y(Tensor<bf16>::poisoned(c.tokens, c.width())),
        lse(Tensor<float>::poisoned(c.heads / c.token_rows(), c.token_rows() * c.tokens)),
        workspace(attention_workspace<bf16>(c.tokens, c.heads, c.head_dim)) {
    attention_forward<bf16>(stream, y.device(), lse.device(), inputs(), mask.view(), scratch());
  }

  AttentionInputs<bf16> inputs() const { return {q.device(), k.device(), v.device(), c.heads, 0.12f, c.paired}; }
  Workspace scratch() const { return {workspace.data(), workspace.size()}; }
  /// Without a factor if null.
  void differentiate(const Gradients& d, const Tensor<float>* factor) const {
    AttentionValueFactor<bf16> values;
    if (factor) values = {factor->device().data, d.of_factor.device().data};
    attention_backward<bf16>(stream, d.d_q.device(), d.d_k.device(), d.d_v.device(), y.device(), lse.device(),
                             d_y.device(), inputs(), mask.view(), scratch(), values);
  }
};

class CudaAttentionValues : public testing::TestWithParam<Case> {};

TEST_P(CudaAttentionValues, FactorMultipliesTheirGradient) {
  SKIP_WITHOUT_DEVICE();
  const Problem p(GetParam());
  const Tensor<float> factor = Tensor<float>::of(1, 1, {0.75f});
  const Gradients without(p.c), with(p.c);
  p.differentiate(without, nullptr);
  p.differentiate(with, &factor);
  EXPECT_EQ(with.d_q.device_values(), without.d_q.device_values());
  EXPECT_EQ(with.d_k.device_values(), without.d_k.device_values());
  EXPECT_EQ(without.of_factor.device_values(), test::Vector<float>{0.5f});
  test::Vector<float> scaled = without.d_v.device_values();
  const test::Vector<float> v = p.v.device_values();
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    const double term = static_cast<double>(scaled[i]) * v[i];
    sum += term;
    squares += term * term;
    scaled[i] *= 0.75f;
  }
  // Each side is rounded to bf16 once, by 1.7e-3 in norm.
  EXPECT_LT(test::relative_error(with.d_v.device_values(), scaled), 4e-3);
  // Terms of random signs, each with such an error of its own, and y with as much.
  EXPECT_NEAR(with.of_factor.device_values()[0] - 0.5, sum / 0.75, 2e-2 * std::sqrt(squares) / 0.75);
}

TEST_P(CudaAttentionValues, ZeroFactorHasNoGradient) {
  SKIP_WITHOUT_DEVICE();
  const Problem p(GetParam());
  const Tensor<float> zero = Tensor<float>::of(1, 1, {0});
  const Gradients d(p.c);
  p.differentiate(d, &zero);
  EXPECT_EQ(d.d_v.device_values(), test::Vector<float>(static_cast<std::size_t>(p.c.tokens) * p.c.width()));
  EXPECT_EQ(d.of_factor.device_values(), test::Vector<float>{0.5f});
}

TEST_P(CudaAttentionValues, GradientOfTheFactorIsReproducible) {
  SKIP_WITHOUT_DEVICE();
  const Problem p(GetParam());
  const Tensor<float> factor = Tensor<float>::of(1, 1, {0.75f});
  test::expect_same_bits([&](Stream) {
    const Gradients d(p.c);
    p.differentiate(d, &factor);
    return d.of_factor.device_values();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttentionValues,
    testing::Values(Case{"smallest", 128, 1, {}}, Case{"documents", 384, 2, {0, 50, 200, 201, 300}},
                    Case{"more_tiles_than_sms", 1024, 40, {300}}, Case{"heads_of_64", 640, 3, {70}, 64},
                    Case{"paired", 384, 6, {100}, 128, true}, Case{"paired_heads_of_64", 384, 6, {}, 64, true},
                    Case{"recipe", 49152, 6, test::regular_documents(49152, 1000)}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nanorun::kernels::cuda
