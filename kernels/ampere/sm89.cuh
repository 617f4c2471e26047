#pragma once
// Products of numbers of 8 bits, which GPUs of compute capability 8.9 and later have. Names follow the PTX manual.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda::sm89 {

#define NANORUN_MMA_FP8(operands)                           \
  asm("mma.sync.aligned.m16n8k32.row.col.f32." operands     \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
      "{%0, %1, %2, %3};"                                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

/// A warp's d [16, 8] += a [16, 32] b [32, 8], of e4m3 or e5m2. Two of them lie where mma() of ptx.cuh has a bf16.
template <class A, class B>
__device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  if constexpr (std::is_same_v<A, e5m2> && std::is_same_v<B, e5m2>) {
    NANORUN_MMA_FP8("e5m2.e5m2");
  } else if constexpr (std::is_same_v<A, e5m2>) {
    NANORUN_MMA_FP8("e5m2.e4m3");
  } else if constexpr (std::is_same_v<B, e5m2>) {
    NANORUN_MMA_FP8("e4m3.e5m2");
  } else {
    NANORUN_MMA_FP8("e4m3.e4m3");
  }
}
#undef NANORUN_MMA_FP8

}  // namespace nanorun::kernels::cuda::sm89
