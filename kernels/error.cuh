#pragma once
// Every CUDA call is checked where it is made.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace nanorun::kernels::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

/// After a launch: reports a bad configuration at once.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace nanorun::kernels::cuda
