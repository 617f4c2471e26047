#include "kernels/device/sm_limits.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "kernels/device/error.cuh"

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
  const char* const most_kb = std::getenv("NANORUN_SM_SHARED_KB");
  const int most_bytes = most_kb ? std::atoi(most_kb) << 10 : std::numeric_limits<int>::max();
  return {.count = attribute(cudaDevAttrMultiProcessorCount),
          .threads = attribute(cudaDevAttrMaxThreadsPerMultiProcessor),
          .shared_bytes = std::min(most_bytes, attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor))};
}

}  // namespace

const SmLimits& sm_limits() {
  static const SmLimits limits = limits_of_device();
  return limits;
}

}  // namespace nanorun::kernels::cuda
