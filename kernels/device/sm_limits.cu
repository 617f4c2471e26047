#include "kernels/device/sm_limits.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/device/error.cuh"
#include "kernels/device/variables.hpp"

namespace nanorun::kernels::cuda {
namespace {

constexpr SmLimits h100{.count = 132, .threads = 2048, .shared_bytes = 228 << 10};

SmLimits limits_of_device() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return h100;
  }
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
  };
  return {.count = attribute(cudaDevAttrMultiProcessorCount),
          .threads = attribute(cudaDevAttrMaxThreadsPerMultiProcessor),
          .shared_bytes =
              std::min(device_variables().shared_bytes, attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor))};
}

}  // namespace

const SmLimits& sm_limits() {
  static const SmLimits limits = limits_of_device();
  return limits;
}

}  // namespace nanorun::kernels::cuda
