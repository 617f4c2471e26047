#pragma once
// Checks of CUDA calls: a failure throws std::runtime_error.

#include <cuda_runtime.h>

#include <new>
#include <stdexcept>
#include <string>

namespace nanorun::kernels::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const char* const remedy =
      status == cudaErrorUnsupportedPtxVersion
          ? ": the driver is older than the CUDA of this build, whose kernels it would have to "
            "compile: use a newer driver, or build with CMAKE_CUDA_ARCHITECTURES naming the GPU's own"
          : "";
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status) + remedy);
}

/// For allocations: throws std::bad_alloc where memory is short, and clears the error for the next call.
inline void check_memory(cudaError_t status, const char* call) {
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(status, call);
}

}  // namespace nanorun::kernels::cuda
