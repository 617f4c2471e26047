#pragma once
// Floats in fp16 and back, on the host.

#include <cuda_fp16.h>

#include "kernels/device/fp16.hpp"

namespace nanorun::kernels::test {

/// Rounded to the nearest, ties to even.
inline fp16 to_fp16(float x) {
  const __half_raw half = __float2half_rn(x);
  return {half.x};
}

inline float to_float(fp16 x) {
  __half_raw half;
  half.x = x.bits;
  return __half2float(half);
}

inline float round_to_fp16(float x) { return to_float(to_fp16(x)); }

}  // namespace nanorun::kernels::test
