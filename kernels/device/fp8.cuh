#pragma once
// Conversion to e4m3 and e5m2.

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Four floats as F = e4m3 or e5m2, saturating; NaN stays NaN.
template <class F>
__device__ std::uint32_t pack_fp8(const float* x) {
  constexpr __nv_fp8_interpretation_t format = std::is_same_v<F, e4m3> ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, format);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, format);
  return low | high << 16;
}

/// (max(low, 0), max(high, 0)) as a pair of e4m3, saturating; NaN stays NaN. Needs compute capability 8.9.
__device__ __forceinline__ std::uint32_t pack_e4m3_relu(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace nanorun::kernels::cuda
