#pragma once
// Functions of the CUDA driver, looked up through the runtime, so that programs start on machines without a driver.

#include <cuda.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "kernels/device/cuda_versions.cuh"
#include "kernels/device/error.cuh"

namespace nanorun::kernels::cuda {

/// F: type of the function, as cuda.h declares it since CUDA `version` (12000 is 12.0). Throws std::runtime_error where
/// the driver lacks it.
template <class F>
F* driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(driver_entry_point(name, &function, version, &found), "cudaGetDriverEntryPoint");
  if (found != cudaDriverEntryPointSuccess) throw std::runtime_error(std::string("the driver has no ") + name);
  return reinterpret_cast<F*>(function);
}

inline void check(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  throw std::runtime_error(std::string(call) + " failed: CUDA driver error " + std::to_string(status));
}

}  // namespace nanorun::kernels::cuda
