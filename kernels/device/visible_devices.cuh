#pragma once
// How many devices CUDA finds. The CUDA ops and the portable ones of a Kokkos with CUDA share it.

#include "kernels/device/error.cuh"

namespace nanorun::kernels::cuda {

/// 0 also where the driver is missing or too old. Throws std::runtime_error where it fails otherwise.
inline int visible_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  check(status, "cudaGetDeviceCount");
  return count;
}

}  // namespace nanorun::kernels::cuda
