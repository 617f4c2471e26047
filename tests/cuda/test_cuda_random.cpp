#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/device/random.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

constexpr std::uint64_t key = 0x3A8CA9AAEF4D02C2;

/// n numbers from number `first` on, written from element `at` on.
void compare(int n, std::uint64_t first, int at) {
  SCOPED_TRACE(n);
  auto uniform = Tensor<float>::poisoned(1, at + n), normal = Tensor<float>::poisoned(1, at + n);
  portable::fill_uniform<float>({}, uniform.host_flat().subspan(at), key, first, 0.036);
  cuda::fill_uniform<float>({}, uniform.device_flat().subspan(at), key, first, 0.036);
  portable::fill_normal<float>({}, normal.host_flat().subspan(at), key, first, 1);
  cuda::fill_normal<float>({}, normal.device_flat().subspan(at), key, first, 1);
  const Vec<float> host = uniform.host_flat();
  const test::Vector<float> of_device = uniform.device_values();
  for (int i = at; i < at + n; ++i) ASSERT_EQ(of_device[i], host[i]) << i;
  // Logarithm and cosine may differ in the last place of a double, and so their product rounded to float in its last.
  const test::Vector<float> normals = normal.device_values();
  for (int i = at; i < at + n; ++i) ASSERT_NEAR(normals[i], normal.host_flat()[i], 0x1p-23 * std::abs(normals[i])) << i;
  for (int i = 0; i < at; ++i) ASSERT_TRUE(std::isnan(of_device[i]) && std::isnan(normals[i])) << i;
}

TEST(CudaRandom, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 0, 0);
  compare(1003, 5, 1);
  compare(3'000'001, 0, 0);
  compare(1003, std::uint64_t{1} << 33, 0);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
