#pragma once
// Pairs of bf16 or fp16 in a register, as the fragments of tensor cores hold them: the low half is the first element.

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/fp16.hpp"
#include "kernels/device/ptx.cuh"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Rounds to nearest even; fp16 beyond 65504 becomes infinite.
template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  if constexpr (std::is_same_v<T, bf16>) return pack_bf16(low, high);
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <class T>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  if constexpr (std::is_same_v<T, bf16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

}  // namespace nanorun::kernels::cuda
