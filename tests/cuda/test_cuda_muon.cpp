#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/fp8.hpp"
#include "kernels/matmul.hpp"
#include "kernels/muon.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

constexpr MatrixBatch shapes[] = {{2, 8, 8},     {3, 64, 64},    {2, 16, 40},   {3, 40, 16},
                                  {2, 768, 768}, {1, 3072, 768}, {1, 768, 3072}};

std::vector<float> newton_schulz_of(const std::vector<float>& x, const MatrixBatch& shape) {
  const test::BlasStream stream;
  const test::DeviceVector<float> values(x);
  const test::DeviceVector<std::byte> scratch(newton_schulz_workspace<float>(shape));
  newton_schulz<float>(stream, {values.data(), values.size()}, shape, {scratch.data(), scratch.size()});
  return values.host();
}

std::vector<float> portable_newton_schulz(std::vector<float> x, const MatrixBatch& shape) {
  std::vector<std::byte> memory(portable::newton_schulz_workspace<float>(shape) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  portable::newton_schulz<float>({}, x, shape, Workspace(memory).subspan(skip));
  return x;
}

void round(std::vector<float>& values) {
  for (float& value : values) value = portable::round_to_bf16(value);
}

/// The iteration on one wide matrix, every matrix rounded to bf16 where the tensor cores' results are stored.
void rounded_iteration(Mat<float> x) {
  const int n = x.rows, m = x.cols;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += std::pow(static_cast<double>(x.data[i]), 2);
  std::vector<float> X(x.data, x.data + x.size()), A(n * n), B(n * n), next(X.size());
  for (float& value : X) value /= static_cast<float>(std::sqrt(squares) + 1e-7);
  round(X);
  for (int k = 0; k < 5; ++k) {
    const Mat<float> X_mat(X.data(), n, m), A_mat(A.data(), n, n), B_mat(B.data(), n, n);
    portable::linear_forward<float>({}, A_mat, X_mat, X_mat);
    round(A);
    portable::linear_forward<float>({}, B_mat, A_mat, A_mat);
    for (std::size_t i = 0; i < B.size(); ++i) B[i] = -4.7750f * A[i] + 2.0315f * B[i];
    round(B);
    portable::linear_backward_input<float>({}, Mat<float>(next.data(), n, m), B_mat, X_mat);
    for (std::size_t i = 0; i < X.size(); ++i) X[i] = 3.4445f * X[i] + next[i];
    round(X);
  }
  std::copy(X.begin(), X.end(), x.data);
}

TEST(CudaMuon, NewtonSchulzIsTheIterationRoundedToBf16) {
  SKIP_WITHOUT_DEVICE();
  for (const MatrixBatch& shape : shapes) {
    SCOPED_TRACE(std::to_string(shape.rows) + "x" + std::to_string(shape.cols));
    const std::size_t size = static_cast<std::size_t>(shape.rows) * shape.cols;
    auto x = test::convert<float>(test::random_values(shape.count * size, 7, -0.02, 0.02));
    const std::vector<float> result = newton_schulz_of(x, shape);
    const std::vector<float> exact = portable_newton_schulz(x, shape);

    // Rounding to bf16 costs what the emulation says: five steps multiply small singular values, and the roundings of
    // the first step with them, by 3.4445^5 = 485.
    std::vector<float> emulated = x;
    for (int i = 0; i < shape.count; ++i) {
      float* const matrix = emulated.data() + i * size;
      if (shape.rows <= shape.cols) {
        rounded_iteration({matrix, shape.rows, shape.cols});
        continue;
      }
      std::vector<float> turned(size);
      const auto turn = [](float* to, const float* from, int rows, int cols) {
        for (int r = 0; r < rows; ++r)
          for (int c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
      };
      turn(turned.data(), matrix, shape.rows, shape.cols);
      rounded_iteration({turned.data(), shape.cols, shape.rows});
      turn(matrix, turned.data(), shape.cols, shape.rows);
    }
    const double of_emulation = test::relative_error(emulated, exact);
    EXPECT_LT(of_emulation, 0.1);
    EXPECT_LT(test::relative_error(result, exact), 1.25 * of_emulation + 1e-3);
    EXPECT_LT(test::relative_error(result, emulated), 0.75 * of_emulation + 1e-3);
    RecordProperty("error_" + std::to_string(shape.rows) + "x" + std::to_string(shape.cols),
                   std::to_string(test::relative_error(result, exact)));
  }
}

TEST(CudaMuon, ScaleOfTheInputDoesNotMatter) {
  SKIP_WITHOUT_DEVICE();
  const MatrixBatch shape{2, 64, 96};
  auto x = test::convert<float>(test::random_values(2 * 64 * 96, 3));
  const std::vector<float> result = newton_schulz_of(x, shape);
  for (float& value : x) value *= 0x1p-10f;
  // The 1e-7 beside the norm, then 0.03, is all that differs.
  EXPECT_LT(test::relative_error(newton_schulz_of(x, shape), result), 2e-2);
}

TEST(CudaMuon, ZeroStaysZero) {
  SKIP_WITHOUT_DEVICE();
  const MatrixBatch shape{2, 16, 24};
  for (const float value : newton_schulz_of(std::vector<float>(2 * 16 * 24), shape)) ASSERT_EQ(value, 0);
}

TEST(CudaMuon, RefusesOddSides) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(newton_schulz_of(std::vector<float>(7 * 8), {1, 7, 8}), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
