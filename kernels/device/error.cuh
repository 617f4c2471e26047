#pragma once
// Checks of CUDA calls: a failure throws std::runtime_error.

#include <cuda_runtime.h>

#include <new>
#include <stdexcept>
#include <string>

namespace nanorun::kernels::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
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
