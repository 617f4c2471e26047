#include <gtest/gtest.h>

#include <cmath>

#include "kernels/fill.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::Tensor;

// Sizes with and without a remainder, beginning at and beside an aligned address.
constexpr std::size_t sizes[] = {1, 7, 1000, 3'000'001};

TEST(CudaFill, WritesEveryElementAndNoOther) {
  SKIP_WITHOUT_DEVICE();
  for (const std::size_t n : sizes) {
    for (const std::size_t first : {0, 1}) {
      DeviceVector<float> x(n + first + 1);
      DeviceVector<bf16> y(n + first + 1);
      fill<float>({}, {x.data() + first, n}, 1.5);
      fill<bf16>({}, {y.data() + first, n}, 1.5);
      const auto floats = x.host();
      const auto halves = y.host();
      for (std::size_t i = 0; i < n + first + 1; ++i) {
        const bool inside = i >= first && i < first + n;
        ASSERT_EQ(floats[i] == 1.5f, inside) << i;
        ASSERT_EQ(test::to_float(halves[i]) == 1.5f, inside) << i;
      }
    }
  }
}

TEST(CudaFill, ScaleMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {1, 1003, 2'000'002}) {
    Tensor<float> x(1, n, 1);
    portable::scale<float>({}, x.host_flat().subspan(1), 0.125);
    cuda::scale<float>({}, x.device_flat().subspan(1), 0.125);
    x.expect_match("x", 0, 0);
  }
}

template <class X>
void compare_add(int rows, int cols, int ld) {
  Tensor<bf16> out(rows, cols, 1, {}, ld);
  Tensor<X> x(rows, cols, 2);
  portable::add<float>({}, out.host(), x.host());
  cuda::add<bf16>({}, out.device(), x.device());
  out.expect_match("out");
}

TEST(CudaFill, AddMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_add<bf16>(1, 8, 8);
  compare_add<bf16>(33, 40, 64);
  compare_add<float>(33, 40, 64);
  compare_add<bf16>(4096, 768, 3072);
}

TEST(CudaFill, SumOfSquaresMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {1, 1003, 2'000'002}) {
    Tensor<float> x(1, n, 1);
    const double want = portable::sum_of_squares<float>({}, x.host_flat());
    // Both sum in double.
    EXPECT_NEAR(cuda::sum_of_squares<float>({}, x.device_flat()), want, 1e-12 * want);
  }
}

TEST(CudaFill, RefusesRowsThatAreNotWholeVectors) {
  SKIP_WITHOUT_DEVICE();
  Tensor<bf16> x(2, 12, 1);
  EXPECT_THROW(cuda::add<bf16>({}, x.device(), x.device()), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
