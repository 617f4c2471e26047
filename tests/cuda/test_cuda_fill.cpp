#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/device/fill.hpp"
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
      DeviceVector<double> z(n + first + 1);
      fill<float>({}, {x.data() + first, n}, 1.5);
      fill<bf16>({}, {y.data() + first, n}, 1.5);
      fill<double>({}, {z.data() + first, n}, 1.5);
      const auto floats = x.host();
      const auto halves = y.host();
      const auto doubles = z.host();
      for (std::size_t i = 0; i < n + first + 1; ++i) {
        const bool inside = i >= first && i < first + n;
        ASSERT_EQ(floats[i] == 1.5f, inside) << i;
        ASSERT_EQ(test::to_float(halves[i]) == 1.5f, inside) << i;
        ASSERT_EQ(doubles[i] == 1.5, inside) << i;
      }
    }
  }
}

TEST(CudaFill, RoundsToNearestEvenOrTruncates) {
  SKIP_WITHOUT_DEVICE();
  for (const int n : {1, 1003, 2'000'002}) {
    for (const int first : {0, 1}) {
      const Tensor<float> x(1, n + first, 1);
      const auto floats = Tensor<float>::poisoned(1, n + first);
      const Vec<const float> from = x.device_flat().subspan(first);
      for (const bool truncates : {false, true}) {
        const auto halves = Tensor<bf16>::poisoned(1, n + first);
        round_to<bf16>({}, halves.device_flat().subspan(first), from, truncates);
        halves.expect_rounded(x, first, truncates);
      }
      round_to<float>({}, floats.device_flat().subspan(first), from);
      floats.expect_rounded(x, first);
    }
  }
  // Between 1 and its successor 1 + 2^-7, and that one's; the largest float rounds to infinity.
  const DeviceVector<float> ties(test::Vector<float>{1 + 0x1p-8f, 1 + 0x1.8p-7f, std::numeric_limits<float>::max()});
  const DeviceVector<bf16> rounded(3);
  round_to<bf16>({}, {rounded.data(), 3}, Vec<const float>(ties.data(), 3));
  const auto bits = rounded.host();
  EXPECT_EQ(test::to_float(bits[0]), 1);
  EXPECT_EQ(test::to_float(bits[1]), 1 + 0x1p-6f);
  EXPECT_TRUE(std::isinf(test::to_float(bits[2])));
}

TEST(CudaFill, CopiesBf16) {
  SKIP_WITHOUT_DEVICE();
  for (const int first : {0, 1}) {
    const Tensor<bf16> x(1, 1003 + first, 1);
    const auto halves = Tensor<bf16>::poisoned(1, 1003 + first);
    round_to<bf16, bf16>({}, halves.device_flat().subspan(first), x.device_flat().subspan(first));
    halves.expect_rounded(x, first);
  }
}

TEST(CudaFill, RoundsFloatsInPlace) {
  SKIP_WITHOUT_DEVICE();
  for (const int first : {0, 1}) {
    const Tensor<float> x(1, 1003 + first, 1);
    const test::Vector<float> before = x.device_values();
    round_as_bf16<float>({}, x.device_flat().subspan(first));
    const test::Vector<float> after = x.device_values();
    for (int i = 0; i < 1003 + first; ++i) {
      ASSERT_EQ(after[i], i < first ? before[i] : round_to_bf16(before[i])) << i;
    }
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

/// Runs of zeros, as rows without a gradient are; one element of a vector alone; the last elements make no vector.
TEST(CudaFill, MoveSumMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  constexpr int n = 100'003;
  test::Vector<float> values = Tensor<float>(1, n, 1).device_values();
  for (int i = 0; i < n; ++i) {
    if (i / 768 % 3 != 0 && i % 1000 != 7) values[i] = 0;
  }
  Tensor<float> out(1, n, 2), x = Tensor<float>::of(1, n, values);
  portable::move_sum<float>({}, out.host_flat(), x.host_flat());
  cuda::move_sum<float>({}, out.device_flat(), x.device_flat());
  out.expect_match("out", 0, 0);
  x.expect_match("x", 0, 0);
}

TEST(CudaFill, RefusesRowsThatAreNotWholeVectors) {
  SKIP_WITHOUT_DEVICE();
  Tensor<bf16> x(2, 12, 1);
  EXPECT_THROW(cuda::add<bf16>({}, x.device(), x.device()), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
