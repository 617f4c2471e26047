#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/device/magnitude.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

TEST(CudaMaxMagnitude, KeepsTheLargestOfAllCalls) {
  SKIP_WITHOUT_DEVICE();
  const test::DeviceVector<float> maximum(test::Vector<float>{0});
  const auto after = [&](const Tensor<bf16>& x, int cols) {
    cuda::max_magnitude<bf16>({}, std::vector<Magnitude<bf16>>{{maximum.data(), x.device().col_block(0, cols)}});
    return maximum.host()[0];
  };
  constexpr int rows = 3001, cols = 776;
  test::Vector<float> x(std::size_t{rows} * cols, -0.25f);
  EXPECT_EQ(after(Tensor<bf16>::of(rows, cols, x), 768), 0.25f);
  x[std::size_t{1234} * cols + 767] = -3;
  x[std::size_t{1234} * cols + 768] = 100;  // between the rows
  x[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(after(Tensor<bf16>::of(rows, cols, x), 768), 3);
  x[std::size_t{1234} * cols + 767] = 2;
  EXPECT_EQ(after(Tensor<bf16>::of(rows, cols, x), 768), 3);
  x[x.size() - 9] = 4;  // the last in a row
  EXPECT_EQ(after(Tensor<bf16>::of(rows, cols, x), 768), 4);
  EXPECT_EQ(after(Tensor<bf16>::of(1, 8, {0, 0, 0, 0, 0, 0, 0, 5}), 8), 5);
  EXPECT_EQ(after(Tensor<bf16>::of(1, 8, {-std::numeric_limits<float>::infinity(), 0, 0, 0, 0, 0, 0, 5}), 8),
            std::numeric_limits<float>::infinity());
}

/// More than one launch takes, of other shapes, the first and the last among the larger ones.
TEST(CudaMaxMagnitude, EachMatrixRaisesItsOwn) {
  SKIP_WITHOUT_DEVICE();
  constexpr int count = 71, rows = 517, cols = 264;
  test::Vector<float> values(std::size_t{rows} * cols, 0.5f), want(count);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  const Tensor<bf16> small = Tensor<bf16>::of(rows, cols, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = test::to_float(test::from_float<bf16>(static_cast<float>(i) / 64));
  const Tensor<bf16> x = Tensor<bf16>::of(rows, cols, values);
  const test::DeviceVector<float> maxima(want);
  std::vector<Magnitude<bf16>> magnitudes;
  for (int i = 0; i < count; ++i) {
    const Mat<bf16> matrix = i % 5 == 2 ? small.device() : x.device().row_block(i, i % 7 == 0 ? rows - i : i % 7);
    magnitudes.push_back({maxima.data() + i, matrix});
    want[i] = i % 5 == 2 ? 0.5f : values[static_cast<std::size_t>(i + matrix.rows) * cols - 1];
  }
  for (int launches = 0; launches < 2; ++launches) {
    cuda::max_magnitude<bf16>({}, magnitudes);
    EXPECT_EQ(maxima.host(), want);
  }
}

TEST(CudaMaxMagnitude, RefusesRowsThatAreNoWholeVectors) {
  SKIP_WITHOUT_DEVICE();
  const test::DeviceVector<float> maximum(1);
  const Tensor<bf16> x(16, 132, 1);
  EXPECT_THROW(cuda::max_magnitude<bf16>({}, std::vector<Magnitude<bf16>>{{maximum.data(), x.device()}}),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
