#pragma once
// Every CUDA call is checked where it is made.

#include <cuda_runtime.h>

#include <new>
#include <stdexcept>
#include <string>

namespace nanorun::kernels::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

/// Of an allocation: throws std::bad_alloc where the memory does not suffice, and leaves no error behind for the next
/// call to find.
inline void check_memory(cudaError_t status, const char* call) {
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(status, call);
}

/// After a launch: reports a bad configuration at once.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace nanorun::kernels::cuda
