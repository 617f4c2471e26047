#pragma once
// What differs between the versions of CUDA that the kernels compile with, 12.4 and newer.

#include <cuda_runtime.h>

#include <unordered_map>

#if CUDART_VERSION < 12040
#error "the CUDA kernels need CUDA 12.4 or newer"
#endif

namespace nanorun::kernels::cuda {

/// Looks up a function of the driver, as cuda.h declares it since CUDA `version` (12000 is 12.0). CUDA 12 finds the
/// newest that its own version has: with it the declaration in its cuda.h must be that of `version`.
inline cudaError_t driver_entry_point(const char* name, void** function, [[maybe_unused]] unsigned version,
                                      cudaDriverEntryPointQueryResult* found) {
#if CUDART_VERSION >= 13000
  return cudaGetDriverEntryPointByVersion(name, function, version, cudaEnableDefault, found);
#else
  return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, found);
#endif
}

/// States how an SM divides its memory while the kernel runs: percent for shared memory. CUDA 13 takes it as an
/// attribute of the launch, which this writes behind the first `count` and counts; CUDA 12 as one of the kernel, which
/// then holds for its later launches.
inline cudaError_t prefer_shared_memory([[maybe_unused]] const void* kernel, unsigned percent,
                                        [[maybe_unused]] cudaLaunchAttribute* attributes,
                                        [[maybe_unused]] unsigned& count) {
#if CUDART_VERSION >= 13000
  attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[count++].val.sharedMemCarveout = percent;
  return cudaSuccess;
#else
  thread_local std::unordered_map<const void*, unsigned> stated;
  const auto [at, first] = stated.try_emplace(kernel, percent);
  if (!first && at->second == percent) return cudaSuccess;
  at->second = percent;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, static_cast<int>(percent));
#endif
}

}  // namespace nanorun::kernels::cuda
