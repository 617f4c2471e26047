#pragma once
// The one way to launch a kernel. Programmatic dependent launch hides the latency: blocks of a kernel may start while
// the kernel before it on the stream still runs, and then wait for its end.
//
// The contract: every thread of every block calls begin_after_previous() before its first access to global memory, be
// it a read, a write, an atomic, a copy or a load by TMA; also in blocks that then return at once. Before that call it
// may use the kernel's parameters, registers and shared memory, and initialise mbarriers.
// - The call returns when the kernel before has ended and its writes are visible. As that kernel had waited for its own
//   predecessor, this holds of all earlier work on the stream. So kernels access global memory one after another, as
//   without overlap; memory that they share, and counters that the last block resets, need no more than before.
// - Then the call lets the next kernel start, once all blocks of this one have come so far. Hence at most two kernels
//   overlap; and blocks that wait take no room from blocks of the kernel before, which have all started. So these may
//   wait for each other as before.
// - Copies, events and the kernels of libraries wait for the kernel before to end, or wait inside as these do. A kernel
//   behind a copy or an awaited event starts when that is done.
// join_runs of embedding.cu is the one exception; it says why it may read earlier.
//
// Programmatic dependent launch is for Hopper's tier, and every kernel uses it through begin_after_previous() and
// launch(). Code for other GPUs has no such call, and their launches have no such attribute: then each kernel starts
// when the one before has ended.

#include <cuda_runtime.h>

#include <unordered_map>

#include "kernels/device/cuda_versions.cuh"
#include "kernels/device/error.cuh"
#include "kernels/device/sm_limits.hpp"
#include "kernels/device/tier.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Without it, each kernel starts when the one before has ended: to measure what the overlap gains.
constexpr bool overlap_launches = true;

inline cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// See above. The order matters: the next kernel may start only when all that is before this one is done.
__device__ __forceinline__ void begin_after_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// How an SM divides its memory between L1 and shared memory while this kernel runs: percent for shared memory, enough
/// for as many blocks as their threads allow, and the rest for L1. Without a preference a kernel whose blocks start
/// early would keep the division of the kernel before: behind attention next to no L1. There are two divisions, since
/// an SM changes them only when no block runs on it.
inline unsigned shared_memory_carveout(const char* op, const void* kernel, int threads, int shared_bytes) {
  constexpr int small = 64 << 10;
  thread_local std::unordered_map<const void*, int> static_bytes;
  auto found = static_bytes.find(kernel);
  if (found == static_bytes.end()) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), op);
    found = static_bytes.emplace(kernel, static_cast<int>(attributes.sharedSizeBytes)).first;
  }
  const int needed = (found->second + shared_bytes + reserved_shared_bytes) * (sm_limits().threads / threads);
  return needed <= small ? 100 * small / sm_limits().shared_bytes : 100;
}

/// Launches a kernel that calls begin_after_previous(), with `shared_bytes` of dynamic shared memory. Throws
/// std::runtime_error that names `op` if the configuration is bad.
template <class... Parameters, class... Arguments>
void launch(const char* op, Stream stream, void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
            const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  const void* const function = reinterpret_cast<const void*>(kernel);
  check(prefer_shared_memory(function, shared_memory_carveout(op, function, threads, shared_bytes), attributes, count),
        op);
  if (overlap_launches && device_tier() == Tier::hopper) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = cuda_stream(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), op);
}

}  // namespace nanorun::kernels::cuda
