// The bodies of both tiers against each other, on one Hopper GPU: a user of another GPU gets what Hopper computes.
// Other tests compare each with the portable implementation. Every op with two bodies, see kernels/device/tier.hpp,
// must be here or in one of these:
//   here                           squared-relu layer, softcap and loss, symmetric GEMMs of Muon, embedding backward
//   test_cuda_tiers_attention.cpp  attention, and its projection
//   test_cuda_tiers_fp8.cpp        bodies for operands in 8 bits
// Bounds on an element are twice those that the test of the op has between a tier and the portable implementation.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear/matmul.hpp"
#include "kernels/lm_head/lm_head_softcap.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"
#include "kernels/stream/embedding.hpp"
#include "tests/cuda/softcap_options.hpp"
#include "tests/cuda/symmetric_matrices.hpp"
#include "tests/cuda/tiers.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Bodies;
using test::BothTensors;
using test::BothVectors;
using test::DeviceVector;
using test::expect_near;
using test::poisoned_tensors;
using test::Tensor;
using test::Tokens;
using test::with_both;

// ---------------------------------------------------------------------------------------------------------------------
// Squared-relu layer

/// x [rows, in], w [out, in]; `pad` more elements from row to row of h and d_z.
struct LinearShape {
  int rows, in, out, pad = 0;
};

/// Less than a tile, more in every direction, more than run at once, and record 89.
constexpr LinearShape linear_shapes[] = {{1, 64, 64},         {17, 128, 64, 8}, {131, 64, 320},
                                         {300, 576, 576, 16}, {17000, 64, 320}, {4104, 768, 3072}};

std::string name(const LinearShape& s) {
  return std::to_string(s.rows) + "x" + std::to_string(s.in) + "->" + std::to_string(s.out);
}

TEST(CudaTiers, LinearRelu2Forward) {
  SKIP_WITHOUT_BOTH_TIERS();
  constexpr Bodies forward{hopper::linear_relu2_forward<bf16>, ampere::linear_relu2_forward<bf16>};
  for (const LinearShape& s : linear_shapes) {
    const Tensor<bf16> x(s.rows, s.in, 1), w(s.out, s.in, 2);
    const Tensor<float> numbers(1, s.out, 3);
    for (const Vec<const float> bias : {Vec<const float>(), Vec<const float>(numbers.device_flat())}) {
      SCOPED_TRACE(name(s) + (bias.empty() ? "" : ", with a bias"));
      auto h = poisoned_tensors<bf16>(s.rows, s.out, s.out + s.pad);
      with_both([&](auto of) { of(forward)({}, of(h).device(), x.device(), w.device(), bias); });
      expect_near("h", h, 2e-3);
    }
  }
}

TEST(CudaTiers, LinearRelu2Backward) {
  SKIP_WITHOUT_BOTH_TIERS();
  constexpr Bodies backward{hopper::linear_relu2_backward<bf16>, ampere::linear_relu2_backward<bf16>};
  const Tensor<float> number(1, 1, 9);
  for (const LinearShape& s : linear_shapes) {
    const Tensor<bf16> d_out(s.rows, s.in, 1), w_next(s.in, s.out, 2), h(s.rows, s.out, 3, {0, 4}, s.out + s.pad);
    for (const bool has_factor : {false, true}) {
      SCOPED_TRACE(name(s) + (has_factor ? ", with a factor" : ""));
      const float* const factor = has_factor ? number.device().data : nullptr;
      auto d_z = poisoned_tensors<bf16>(s.rows, s.out, s.out + s.pad);
      with_both(
          [&](auto of) { of(backward)({}, of(d_z).device(), d_out.device(), w_next.device(), h.device(), factor); });
      expect_near("d_z", d_z, 2e-3);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Softcap and loss

/// Logits, and targets of all kinds.
struct Logits {
  int rows, cols;
  test::Vector<float> values = test::sure_logits(static_cast<std::size_t>(rows) * cols, test::further);
  Tokens targets{rows, cols, 2};
  DeviceVector<std::int32_t> prefix{prefixes(cols)};

  /// The gradient takes their place.
  BothTensors<bf16> z() const { return {Tensor<bf16>::of(rows, cols, values), Tensor<bf16>::of(rows, cols, values)}; }
  Softcap in(const Tensor<bf16>& z, const LmHeadOptions& options) const {
    return {z.device(), targets.device_span(), options};
  }

 private:
  /// Of each token: another one, or none.
  static test::Vector<std::int32_t> prefixes(int cols) {
    test::Vector<std::int32_t> prefix;
    for (int token = 0; token <= std::numeric_limits<Token>::max(); ++token) {
      prefix.push_back(token % 3 == 0 ? -1 : token * 7 % cols);
    }
    return prefix;
  }
};

/// Sums of up to 10^5 exponentials in another order, and their logarithm.
void expect_near_losses(const char* name, BothTensors<float>& loss) { expect_near(name, loss, 2e-5, 2e-5); }

void compare_losses(const Logits& logits, const LmHeadOptions& options) {
  constexpr Bodies body{hopper::softcap_loss, ampere::softcap_loss};
  const auto z = logits.z();
  auto loss = poisoned_tensors<float>(1, logits.rows);
  with_both([&](auto of) { of(body)({}, of(loss).device().data, logits.in(of(z), options)); });
  expect_near_losses("loss alone", loss);
  EXPECT_EQ(z.hopper.device_values(), logits.values) << "logits must stay";
  EXPECT_EQ(z.ampere.device_values(), logits.values) << "logits must stay";
}

constexpr double loss_scale = 64;

/// An element is rounded to bf16 twice, before it is multiplied by the sum of its row and after that.
void compare_gradients(const Logits& logits, const LmHeadOptions& options) {
  constexpr Bodies body{hopper::softcap_gradient, ampere::softcap_gradient};
  auto z = logits.z();
  auto loss = poisoned_tensors<float>(1, logits.rows);
  with_both([&](auto of) { of(body)({}, of(loss).device().data, logits.in(of(z), options), loss_scale); });
  expect_near_losses("loss beside a gradient", loss);
  expect_near("gradient", z, 0, 2 * test::two_roundings);
}

/// An element is rounded to bf16, and then to e5m2, by 2^-3 of itself or by 2^-17.
void compare_gradients_fp8(const Logits& logits, const LmHeadOptions& options) {
  constexpr Bodies body{hopper::softcap_gradient_fp8, ampere::softcap_gradient_fp8};
  const auto z = logits.z();
  auto loss = poisoned_tensors<float>(1, logits.rows);
  test::Vector<std::uint8_t> g[2];
  with_both([&](auto of) {
    const Mat<e5m2> from = of(body)({}, of(loss).device().data, logits.in(of(z), options), loss_scale);
    test::Vector<std::uint8_t>& to = g[of.tier == Tier::hopper ? 0 : 1];
    to.resize(from.size());
    test::cuda_check(
        cudaMemcpy2D(to.data(), from.cols, from.data, from.ld, from.cols, from.rows, cudaMemcpyDeviceToHost));
  });
  expect_near_losses("loss beside a gradient in e5m2", loss);
  const std::size_t size = static_cast<std::size_t>(logits.rows) * logits.cols;
  ASSERT_EQ(g[0].size(), size);
  ASSERT_EQ(g[1].size(), size);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double h = test::e5m2.value(g[0][i]), a = test::e5m2.value(g[1][i]);
    wrong += !(std::abs(h - a) <= 2 * (0x1p-3 + 0x1p-7) * std::max(std::abs(h), std::abs(a)) + 2 * 0x1p-17);
  }
  EXPECT_EQ(wrong, 0u) << "of " << size << " elements in e5m2";
}

TEST(CudaTiers, SoftcapAndLoss) {
  SKIP_WITHOUT_BOTH_TIERS();
  // The third has the vocabulary of the records, the last the widest rows.
  for (const auto& [rows, cols] : {std::pair{17, 136}, {96, 4112}, {40, 50304}, {16, 112 * 1008}}) {
    const Logits logits{rows, cols};
    LmHeadOptions rounded = test::further, prefixed = test::further;
    rounded.precision = LmHeadPrecision::fp8;
    prefixed.prefix = {logits.prefix.data(), logits.prefix.size()};
    prefixed.prefix_weight = 0.3;
    int which = 0;
    for (const LmHeadOptions& options : {test::plain, test::further, rounded, prefixed, test::isru, test::uncapped}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(cols) + " columns, options " +
                   std::to_string(which++));
      compare_losses(logits, options);
      compare_gradients(logits, options);
      compare_gradients_fp8(logits, options);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Symmetric GEMMs

using test::Matrices;
using test::SymmetricCase;

/// Calls run(out) for each tier. The bodies' declaration is for nvcc alone: the ops call them. Sums of k products
/// differ by twice what the test of the op allows, and so do the roundings. Both tiers compute the upper triangle.
template <class T, class Run>
void compare_symmetric(const char* name, const SymmetricCase& c, const Run& run) {
  SCOPED_TRACE(name_of(c) + ", " + name);
  const std::size_t size = static_cast<std::size_t>(c.count) * c.n * c.n;
  ASSERT_TRUE(computes_triangle(c.n, c.k));
  const BothVectors<T> out{DeviceVector<T>(size), DeviceVector<T>(size)};  // begins as NaN
  with_both([&](auto of) { run(Mat<T>(of(out).data(), c.n, c.n)); });
  const test::Vector<float> hopper = test::host_values(out.hopper), ampere = test::host_values(out.ampere);
  expect_near<T>(ampere, hopper, 2 * 1e-5 * c.k, 2 * test::rounding_to<T>);
  test::expect_symmetric(ampere, c.n);
}

/// Symmetric matrices that commute exactly: circulant ones, whose rows, columns and signs a choice that all share has
/// mixed.
template <class T>
Matrices<T> commuting_matrices(const SymmetricCase& c, unsigned seed) {
  const int n = c.n;
  const test::Vector<float> numbers = Tensor<float>(c.count, n, seed).device_values();
  test::Vector<float> values;
  std::mt19937 generator(1);
  for (int matrix = 0; matrix < c.count; ++matrix) {
    std::vector<int> place(n), sign(n);
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), generator);
    for (int& s : sign) s = generator() % 2 == 0 ? 1 : -1;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        const int apart = std::abs(place[i] - place[j]), at = std::min(apart, n - apart);
        values.push_back(static_cast<float>(sign[i] * sign[j]) * numbers[static_cast<std::size_t>(matrix) * n + at]);
      }
    }
  }
  return {values, n, n};
}

template <class T>
void compare_symmetric(const SymmetricCase& c) {
  const auto x = test::random_matrices<T>(c, 3), addend = test::symmetric_matrices<T>(c, 5);
  compare_symmetric<T>("x xᵀ", c, [&](Mat<T> out) { symmetric_gemm({}, {.count = c.count}, x.mat(), {}, out); });
  const GemmOptions options{.alpha = 2.0315f, .beta = -4.775f, .count = c.count};
  compare_symmetric<T>("with an addend", c,
                       [&](Mat<T> out) { symmetric_gemm({}, options, x.mat(), addend.mat(), out); });
  test::Vector<float> factors;
  for (int i = 0; i < c.count; ++i) factors.push_back(1 + 0.125f * static_cast<float>(i % 5));
  const DeviceVector<float> scales(factors);
  compare_symmetric<T>("with scales and an addend", c,
                       [&](Mat<T> out) { symmetric_gemm({}, options, x.mat(), addend.mat(), out, scales.data()); });
}

template <class T>
void compare_symmetric_products(int count, int n) {
  const SymmetricCase c{count, n, n};
  const auto x = commuting_matrices<T>(c, 3), y = commuting_matrices<T>(c, 5);
  const GemmOptions options{.alpha = 2.0315f, .beta = -4.775f, .count = count};
  compare_symmetric<T>("polynomial", c, [&](Mat<T> out) { symmetric_gemm({}, options, x.mat(), x.mat(), out); });
  compare_symmetric<T>("product", c,
                       [&](Mat<T> out) { symmetric_product({}, {.count = count}, x.mat(), y.mat(), out); });
  compare_symmetric<T>("product with the identity", c, [&](Mat<T> out) {
    symmetric_product({}, {.alpha = 0.5f, .beta = 4.0429f, .count = count}, x.mat(), y.mat(), out);
  });
}

TEST(CudaTiers, SymmetricGemms) {
  SKIP_WITHOUT_BOTH_TIERS();
  // Few tiles and more than SMs; on Hopper squares; record 89.
  for (const SymmetricCase& c :
       {SymmetricCase{1, 128, 64}, {11, 128, 192}, {3, 384, 512}, {24, 384, 64}, {44, 512, 256}, {6, 768, 3072}}) {
    compare_symmetric<bf16>(c);
    compare_symmetric<fp16>(c);
  }
}

TEST(CudaTiers, SymmetricProducts) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const auto& [count, n] : {std::pair{1, 128}, {3, 384}, {6, 768}, {43, 512}}) {
    compare_symmetric_products<bf16>(count, n);
    compare_symmetric_products<fp16>(count, n);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Embedding

/// Whether something is added to the first row.
void expect_first_row_written(Tensor<float>& d_table) {
  test::Vector<float> row(d_table.device().cols);
  test::cuda_check(cudaMemcpy(row.data(), d_table.device().data, row.size() * sizeof(float), cudaMemcpyDeviceToHost));
  EXPECT_FALSE(std::ranges::equal(row, d_table.host_flat().first(row.size())));
}

/// Both tiers add the same numbers in the same order. The arguments of the bodies are for nvcc alone: the op calls
/// them.
template <class Index>
void compare_embedding(const test::Vector<Index>& rows, int vocabulary, int cols) {
  const int count = static_cast<int>(rows.size());
  SCOPED_TRACE(std::to_string(count) + " rows of " + std::to_string(vocabulary) + ", " + std::to_string(cols));
  const Tensor<bf16> d_out(count, cols, 3);
  test::Vector<std::int32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t t) { return rows[t]; });
  const DeviceVector<Index> device_rows(rows);
  const DeviceVector<std::int32_t> device_order(order);
  const DeviceVector<std::byte> scratch(embedding_backward_workspace<bf16>(count, cols));
  BothTensors<float> d_table{Tensor<float>(vocabulary, cols, 4), Tensor<float>(vocabulary, cols, 4)};
  with_both([&](auto of) {
    test::cuda_check(cudaMemset(scratch.data(), 0xFF, scratch.size()));
    embedding_backward<bf16>({}, of(d_table).device(), Vec<const Index>(device_rows.data(), rows.size()),
                             {device_order.data(), order.size()}, d_out.device(), {scratch.data(), scratch.size()});
  });
  expect_near("d_table", d_table, 0, 0);
  expect_first_row_written(d_table.hopper);
}

TEST(CudaTiers, EmbeddingBackward) {
  SKIP_WITHOUT_BOTH_TIERS();
  struct {
    int count, vocabulary, cols;
  } constexpr cases[] = {{1, 1, 8}, {137, 5, 264}, {1000, 3, 128}, {700, 2, 4096}, {40000, 1, 16}};
  for (const auto& [count, vocabulary, cols] : cases) {
    const test::Vector<Token> tokens = Tokens::draw(count, vocabulary, 1);
    compare_embedding(tokens, vocabulary, cols);
    compare_embedding(test::Vector<std::int32_t>(tokens.begin(), tokens.end()), vocabulary, cols);
  }
  test::Vector<Token> tokens = Tokens::draw(49152, 50304, 1);  // record 89
  tokens[5] = 0;
  compare_embedding(tokens, 50304, 768);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
