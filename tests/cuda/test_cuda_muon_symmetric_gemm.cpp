#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/linear/matmul.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

struct Case {
  int count, n, k;
};

/// Few tiles and more than SMs; fewer k-tiles than stages and more; the last three run cuBLASLt.
constexpr Case cases[] = {{1, 128, 64},   {3, 128, 128}, {11, 128, 192}, {1, 256, 768},  {3, 384, 512},
                          {11, 768, 768}, {24, 768, 64}, {1, 768, 768},  {2, 768, 3072}, {3, 1024, 320},
                          {2, 64, 64},    {3, 136, 200}, {1, 128, 72}};

/// Random symmetric matrices, one after the other; exact in bf16.
test::Vector<float> symmetric_matrices(const Case& c) {
  const std::size_t n = c.n;
  test::Vector<float> values = test::Tensor<bf16>(c.count * c.n, c.n, 5).device_values();
  for (std::size_t first = 0; first < values.size(); first += n * n)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < i; ++j) values[first + i * n + j] = values[first + j * n + i];
  return values;
}

test::Vector<bf16> rounded(const test::Vector<float>& values) {
  test::Vector<bf16> out;
  for (const float value : values) out.push_back(test::from_float<bf16>(value));
  return out;
}

void check(const Case& c, float alpha, float beta) {
  SCOPED_TRACE(std::to_string(c.count) + " of " + std::to_string(c.n) + "x" + std::to_string(c.k) + ", beta " +
               std::to_string(beta));
  const test::BlasStream stream;
  test::Tensor<bf16> x(c.count * c.n, c.k, 3);
  const test::Vector<float> addend = symmetric_matrices(c);
  const test::DeviceVector<bf16> device_addend(rounded(addend));
  auto out = test::Tensor<bf16>::poisoned(c.count * c.n, c.n);
  symmetric_gemm(stream, {.alpha = alpha, .beta = beta, .count = c.count}, x.device().row_block(0, c.n),
                 {beta != 0 ? device_addend.data() : nullptr, c.n, c.n}, out.device().row_block(0, c.n));

  for (int i = 0; i < c.count; ++i) {
    const Mat<float> factor = x.host().row_block(i * c.n, c.n);
    portable::linear_forward<float>({}, out.host().row_block(i * c.n, c.n), factor, factor);
  }
  const Vec<float> expected = out.host_flat();
  for (std::size_t i = 0; i < addend.size(); ++i) expected[i] = alpha * expected[i] + beta * addend[i];
  out.expect_match("out", 1e-5 * c.k);
  const test::Vector<float> got = out.device_values();
  const std::size_t n = c.n;
  for (std::size_t first = 0; first < got.size(); first += n * n)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < i; ++j) ASSERT_EQ(got[first + i * n + j], got[first + j * n + i]) << i << ", " << j;
}

TEST(CudaMuonSymmetricGemm, IsTheGemm) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : cases) check(c, 1, 0);
}

TEST(CudaMuonSymmetricGemm, AddsASymmetricMatrix) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : cases) check(c, 2.0315f, -4.775f);
}

TEST(CudaMuonSymmetricGemm, RepeatsBitByBit) {
  SKIP_WITHOUT_DEVICE();
  const Case c{11, 768, 768};
  const test::BlasStream stream;
  const test::Tensor<bf16> x(c.count * c.n, c.k, 3);
  test::Vector<float> results[2];
  for (test::Vector<float>& result : results) {
    const auto out = test::Tensor<bf16>::poisoned(c.count * c.n, c.n);
    symmetric_gemm(stream, {.count = c.count}, x.device().row_block(0, c.n), {}, out.device().row_block(0, c.n));
    result = out.device_values();
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
