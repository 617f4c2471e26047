#include <gtest/gtest.h>

#include "kernels/fill.hpp"
#include "tests/cuda_memory.hpp"

namespace nanorun::kernels::cuda {
namespace {

TEST(CudaFill, WritesEveryElement) {
  SKIP_WITHOUT_DEVICE();
  for (const std::size_t n : {1u, 1000u, 3'000'001u}) {
    test::DeviceVector<float> x(n);
    fill<float>({}, {x.data(), n}, 1.5);
    for (const float value : x.host()) ASSERT_EQ(value, 1.5f);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda
