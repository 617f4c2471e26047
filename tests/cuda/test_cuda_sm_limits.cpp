#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/device/device.hpp"
#include "kernels/device/sm_limits.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

TEST(CudaSmLimits, AreThoseOfTheDevice) {
  SKIP_WITHOUT_DEVICE();
  int device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, device), cudaSuccess);
  EXPECT_EQ(sm_limits().count, properties.multiProcessorCount);
  EXPECT_EQ(sm_limits().threads, properties.maxThreadsPerMultiProcessor);
  EXPECT_EQ(sm_limits().shared_bytes, static_cast<int>(properties.sharedMemPerMultiprocessor));
  EXPECT_EQ(sm_count(), sm_limits().count);
}

/// So that a dry run plans the memory of a GPU on any machine.
TEST(CudaSmLimits, AreThoseOfAnH100WithoutADevice) {
  if (device_count() > 0) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(sm_limits().count, 132);
  EXPECT_EQ(sm_limits().threads, 2048);
  EXPECT_EQ(sm_limits().shared_bytes, 228 << 10);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
