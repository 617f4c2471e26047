#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/linear/matmul.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/symmetric_matrices.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::expect_near;
using test::expect_symmetric;
using test::host_values;
using test::Matrices;
using test::name_of;
using test::random_matrices;
using test::symmetric_matrices;
using Case = test::SymmetricCase;

/// Few tiles and more than SMs; fewer k-tiles than stages and more; many squares, but of few k-tiles or on the diagonal
/// alone; the last three run cuBLASLt.
constexpr Case cases[] = {{1, 128, 64},   {3, 128, 128},   {11, 128, 192}, {1, 256, 768},  {3, 384, 512},
                          {11, 768, 768}, {24, 768, 64},   {1, 768, 768},  {2, 768, 3072}, {3, 1024, 320},
                          {22, 768, 128}, {140, 256, 256}, {2, 64, 64},    {3, 136, 200},  {1, 128, 72}};

/// In squares of 256: rounds that are whole and that leave some pairs of SMs without work; as many k-tiles as panels
/// and stages, and numbers that are no multiple of these.
constexpr Case square_cases[] = {{44, 512, 256}, {43, 512, 320},  {22, 768, 768},
                                 {33, 768, 448}, {13, 1024, 576}, {5, 2048, 256}};

/// out is alpha s² x xᵀ + beta addend, and exactly symmetric. scales: s of each matrix; none: 1.
template <class T>
void expect_sum(const Case& c, const test::DeviceVector<T>& out, float alpha, const Matrices<T>& x, float beta,
                const Matrices<T>& addend, const test::Vector<float>& scales = {}) {
  test::Vector<float> expected(addend.host.size());
  for (int i = 0; i < c.count; ++i) {
    portable::linear_forward<float>({}, {expected.data() + static_cast<std::size_t>(i) * c.n * c.n, c.n, c.n},
                                    x.host_mat(i), x.host_mat(i));
  }
  const std::size_t square = static_cast<std::size_t>(c.n) * c.n;
  for (std::size_t i = 0; i < expected.size() && !scales.empty(); ++i) {
    expected[i] *= scales[i / square] * scales[i / square];
  }
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = alpha * expected[i] + beta * addend.host[i];
  const test::Vector<float> got = host_values(out);
  expect_near<T>(got, expected, 1e-5 * c.k);
  expect_symmetric(got, c.n);
}

template <class T>
void check(const Case& c, float alpha, float beta) {
  SCOPED_TRACE(name_of(c) + ", beta " + std::to_string(beta));
  const test::BlasStream stream;
  const Matrices<T> x = random_matrices<T>(c, 3), addend = symmetric_matrices<T>(c, 5);
  const test::DeviceVector<T> out(addend.host.size());  // begins as NaN
  const Mat<const T> addend_in(beta != 0 ? addend.device.data() : nullptr, c.n, c.n);
  symmetric_gemm(stream, {.alpha = alpha, .beta = beta, .count = c.count}, x.mat(), addend_in,
                 Mat<T>(out.data(), c.n, c.n));
  expect_sum(c, out, alpha, x, beta, addend);
}

TEST(CudaMuonSymmetricGemm, IsTheGemm) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : cases) check<bf16>(c, 1, 0);
  for (const Case& c : cases) check<fp16>(c, 1, 0);
}

TEST(CudaMuonSymmetricGemm, AddsASymmetricMatrix) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : cases) check<bf16>(c, 2.0315f, -4.775f);
  for (const Case& c : cases) check<fp16>(c, 2.0315f, -4.775f);
}

/// Scales of the matrices of bf16 from 1e-6 to 1e6, of fp16 from 1/8 to 8, and matrices divided by them.
template <class T>
void check_scaled(const Case& c, float beta) {
  SCOPED_TRACE(name_of(c) + ", beta " + std::to_string(beta));
  const test::BlasStream stream;
  test::Vector<float> scales, values = test::Tensor<float>(c.count * c.n, c.k, 3).device_values();
  for (int i = 0; i < c.count; ++i) {
    const double decade = static_cast<double>(i * 5 % 13 - 6) / 6;
    scales.push_back(static_cast<float>(std::is_same_v<T, bf16> ? std::pow(10, 6 * decade) : std::pow(8, decade)));
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] /= scales[i / c.k / c.n];
  const Matrices<T> x(values, c.n, c.k), addend = symmetric_matrices<T>(c, 5);
  const test::DeviceVector<T> out(addend.host.size());  // begins as NaN
  const test::DeviceVector<float> device_scales(scales);
  symmetric_gemm(stream, {.alpha = 2.0315f, .beta = beta, .count = c.count}, x.mat(), addend.mat(),
                 Mat<T>(out.data(), c.n, c.n), device_scales.data());
  expect_sum(c, out, 2.0315f, x, beta, addend, scales);
}

TEST(CudaMuonSymmetricGemm, ScalesEachMatrix) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : {Case{1, 128, 64}, Case{11, 128, 192}, Case{3, 384, 512}, Case{11, 768, 768}, square_cases[0],
                        square_cases[3]}) {
    for (const float beta : {0.0f, -4.775f}) check_scaled<bf16>(c, beta);
    check_scaled<fp16>(c, 0);
  }
}

TEST(CudaMuonSymmetricGemm, RefusesScalesWithoutWholeTiles) {
  const float scale = 1;
  test::Vector<bf16> x(64 * 64), out(x.size());
  const Mat<bf16> out_mat(out.data(), 64, 64);
  EXPECT_THROW(symmetric_gemm({}, {}, Mat<const bf16>(x.data(), 64, 64), {}, out_mat, &scale), std::invalid_argument);
}

/// The two kernels of Hopper: where there are enough squares for two rounds of the pairs of SMs of an H100.
TEST(CudaMuonSymmetricGemm, ChoosesSquaresForManyMatrices) {
  constexpr int sm_count = 132;
  for (const Case& c : square_cases) EXPECT_TRUE(computes_squares(c.n, c.k, c.count, sm_count)) << name_of(c);
  for (const Case& c : cases) EXPECT_FALSE(computes_squares(c.n, c.k, c.count, sm_count)) << name_of(c);
  for (const int n : {1024, 1536, 2048}) {
    EXPECT_TRUE(computes_squares(n, n, 96, sm_count)) << n;
    EXPECT_TRUE(computes_squares(n, 4 * n, 48, sm_count)) << n;
    EXPECT_FALSE(computes_squares(n + 128, n, 96, sm_count)) << n + 128;
  }
}

TEST(CudaMuonSymmetricGemm, ComputesSquares) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : square_cases) check<bf16>(c, 2.0315f, -4.775f);
  for (const Case& c : square_cases) check<fp16>(c, 1, 0);
}

TEST(CudaMuonSymmetricGemm, ComputesSquaresOfManyColumns) {
  SKIP_WITHOUT_DEVICE();
  check<bf16>({43, 512, 8192}, 1, 0);
  check<fp16>({43, 512, 2048}, 0.5f, 2);
}

/// alpha x x + beta x of symmetric x, which one memory holds.
template <class T>
void check_polynomial(const Case& c, float alpha, float beta) {
  SCOPED_TRACE(name_of(c));
  const test::BlasStream stream;
  const Matrices<T> x = symmetric_matrices<T>(c, 3);
  const test::DeviceVector<T> out(x.host.size());  // begins as NaN
  symmetric_gemm(stream, {.alpha = alpha, .beta = beta, .count = c.count}, x.mat(), x.mat(),
                 Mat<T>(out.data(), c.n, c.n));
  expect_sum(c, out, alpha, x, beta, x);
}

TEST(CudaMuonSymmetricGemm, AddsTheFactor) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : {Case{3, 384, 384}, Case{11, 768, 768}, Case{22, 768, 768}, Case{13, 1024, 1024}}) {
    check_polynomial<bf16>(c, 2.0315f, -4.775f);
    check_polynomial<fp16>(c, 2.0315f, -4.775f);
  }
}

/// (alpha x + beta I) y with y = x x / n + x. This commutes with x but for its rounding to T.
template <class T>
void check_product(const Case& c, float alpha, float beta) {
  SCOPED_TRACE(name_of(c) + ", beta " + std::to_string(beta));
  const test::BlasStream stream;
  const std::size_t square = static_cast<std::size_t>(c.n) * c.n;
  const Matrices<T> x = symmetric_matrices<T>(c, 3);
  const auto product_of = [&](const Matrices<T>& a, const Matrices<T>& b) {
    test::Vector<float> out(a.host.size());
    for (int i = 0; i < c.count; ++i) {
      portable::linear_forward<float>({}, {out.data() + i * square, c.n, c.n}, a.host_mat(i), b.host_mat(i));
    }
    return out;
  };
  test::Vector<float> values = product_of(x, x);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i] / static_cast<float>(c.n) + x.host[i];
  const Matrices<T> y(values, c.n, c.n);
  const test::DeviceVector<T> out(values.size());  // begins as NaN
  symmetric_product(stream, {.alpha = alpha, .beta = beta, .count = c.count}, x.mat(), y.mat(),
                    Mat<T>(out.data(), c.n, c.n));

  test::Vector<float> expected = product_of(x, y);
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = alpha * expected[i] + beta * y.host[i];
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  const test::Vector<float> got = host_values(out);
  // Where the mirror image lies, the transpose is expected: sums of n products with roundings of y on either side.
  expect_near<T>(got, expected, 1e-5 * c.n + (std::is_same_v<T, fp16> ? 0x1p-9 : 0x1p-6) * std::sqrt(largest));
  if (computes_triangle(c.n, c.n)) expect_symmetric(got, c.n);
}

TEST(CudaMuonSymmetricGemm, MultipliesMatricesThatCommute) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : cases) check_product<bf16>(c, 1, 0);
  for (const Case& c : cases) check_product<fp16>(c, 0.5f, 0);
  for (const Case& c : cases) check_product<fp16>(c, 0.5f, 4.0429f);
  for (const Case& c : {Case{43, 512, 512}, Case{13, 1024, 1024}}) {
    check_product<bf16>(c, 1, 0);
    check_product<fp16>(c, 0.5f, 4.0429f);
  }
  check_product<fp16>({5, 2048, 2048}, 0.5f, 4.0429f);
}

TEST(CudaMuonSymmetricGemm, RepeatsBitByBit) {
  SKIP_WITHOUT_DEVICE();
  for (const Case& c : {Case{11, 768, 768}, Case{43, 512, 512}}) {
    const test::BlasStream stream;
    const Matrices<fp16> x = symmetric_matrices<fp16>(c, 3);
    const auto run = [&] {
      const test::DeviceVector<fp16> out(x.host.size());
      symmetric_product(stream, {.beta = 1, .count = c.count}, x.mat(), x.mat(), Mat<fp16>(out.data(), c.n, c.n));
      return host_values(out);
    };
    EXPECT_EQ(run(), run()) << name_of(c);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda
