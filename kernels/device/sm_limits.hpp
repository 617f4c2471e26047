#pragma once
// What the streaming multiprocessors (SMs) of the device offer. Launches choose their grids by it.

namespace nanorun::kernels::cuda {

struct SmLimits {
  int count;         ///< SMs of the device
  int threads;       ///< most resident threads of an SM
  int shared_bytes;  ///< shared memory of an SM, in bytes
};

/// Limits of the device that is current in the first call: a process uses one device. Without a device the limits of an
/// H100, so that a dry run can plan the memory of a GPU on any machine. The variable NANORUN_SM_SHARED_KB makes an SM
/// one of no more KiB, for tests of what GPUs with less run. The first call throws what device_variables() throws.
const SmLimits& sm_limits();

inline int sm_count() { return sm_limits().count; }

/// Of the shared memory of each resident thread block, in bytes: what the system takes.
constexpr int reserved_shared_bytes = 1 << 10;

/// Whether the shared memory of an SM holds `blocks` thread blocks that use `bytes` of it each.
inline bool shared_memory_holds(int blocks, int bytes) {
  return blocks * (bytes + reserved_shared_bytes) <= sm_limits().shared_bytes;
}

}  // namespace nanorun::kernels::cuda
