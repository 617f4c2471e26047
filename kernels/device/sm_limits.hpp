#pragma once
// What the device's streaming multiprocessors (SMs) offer, by which launches choose their grids.

namespace nanorun::kernels::cuda {

struct SmLimits {
  int count;         ///< SMs
  int threads;       ///< that one SM holds
  int shared_bytes;  ///< of one SM, shared memory at most
};

/// Of the device that is current in the first call: a process uses one device. Without a device those of an H100, so
/// that the memory of a run can be planned anywhere.
const SmLimits& sm_limits();

inline int sm_count() { return sm_limits().count; }

}  // namespace nanorun::kernels::cuda
