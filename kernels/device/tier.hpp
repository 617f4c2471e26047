#pragma once
// Tiers: where one CUDA body cannot be fast on every GPU, an op has one for Hopper (TMA, wgmma; compute capability 9.0)
// and one for Ampere and whatever came after it (cp.async, mma.sync; 8.0 and up). The bodies lie in <op>_sm90.cu and
// <op>_sm80.cu, in the namespaces hopper and ampere, and what they share in <op>.cuh. NANORUN_DECLARE_TIERED_OPS and
// NANORUN_DECLARE_TIERED declare them, and NANORUN_ON_TIER calls one.

#include <cstddef>

#include "kernels/device/op.hpp"

namespace nanorun::kernels::cuda {

enum class Tier { none, ampere, hopper };

/// The tier whose bodies a device of this compute capability (10 major + minor) takes; none where this build has no
/// code for it. The variable NANORUN_TIER, "8.0" or "8.9", makes Hopper pass for a GPU of that capability. Throws what
/// device_variables() throws.
Tier tier_of(int capability);

/// Tier of the process's device, which use_device() makes known; before that, of the device that is current. Without a
/// device that of an H100, or of the GPU that NANORUN_TIER states, so that a dry run can plan for them on any machine.
Tier device_tier();

/// Called by use_device().
void take_tier_of(int device);

/// Throws std::logic_error: the device's tier has no products of 8-bit numbers, see has_fp8(). Returns nothing.
[[noreturn]] std::size_t refuse_fp8();

}  // namespace nanorun::kernels::cuda

// NANORUN_ON_TIER(f<T>(x)) is f<T>(x) of the device's tier. A build may have the bodies of one tier alone.
#if NANORUN_HOPPER && NANORUN_AMPERE
#define NANORUN_ON_TIER(...) \
  (device_tier() == ::nanorun::kernels::cuda::Tier::hopper ? hopper::__VA_ARGS__ : ampere::__VA_ARGS__)
#elif NANORUN_HOPPER
#define NANORUN_ON_TIER(...) (hopper::__VA_ARGS__)
#else
#define NANORUN_ON_TIER(...) (ampere::__VA_ARGS__)
#endif

// The same of a function for 8-bit numbers.
#if !NANORUN_AMPERE || NANORUN_AMPERE_FP8
#define NANORUN_ON_FP8_TIER(...) NANORUN_ON_TIER(__VA_ARGS__)
#elif NANORUN_HOPPER
#define NANORUN_ON_FP8_TIER(...) (hopper::__VA_ARGS__)
#else
#define NANORUN_ON_FP8_TIER(...) ::nanorun::kernels::cuda::refuse_fp8()
#endif
