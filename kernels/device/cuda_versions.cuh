#pragma once
// What differs between the versions of CUDA that the kernels compile with, 12.4 and newer.

#include <cuda_runtime.h>

#if CUDART_VERSION < 12040
#error "the CUDA kernels need CUDA 12.4 or newer"
#endif

namespace nanorun::kernels::cuda {

/// Looks up a function of the driver, as cuda.h declares it since CUDA `version` (12000 is 12.0). CUDA 12.4 finds what
/// is newest in its own version: with it the declaration in its cuda.h must be that of `version`.
inline cudaError_t driver_entry_point(const char* name, void** function, unsigned version,
                                      cudaDriverEntryPointQueryResult* found) {
#if CUDART_VERSION >= 12050
  return cudaGetDriverEntryPointByVersion(name, function, version, cudaEnableDefault, found);
#else
  static_cast<void>(version);
  return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, found);
#endif
}

}  // namespace nanorun::kernels::cuda
