#pragma once
// wgmma: asynchronous matmuls of a warpgroup, d (+)= a b with bf16, fp16 or fp8 operands and fp32 accumulators. A tile
// in shared memory has rows of 128 bytes, 64 bf16 or fp16 or 128 fp8, in the 128-byte swizzle: the 16-byte chunk c of
// row r lies at chunk c ^ (r % 8). Tiles are aligned to 1024 bytes. Accumulator of m64nN: thread t holds in
// d[4 j + i] the element
//   row 16 (t / 32) + t % 32 / 4 + 8 (i / 2),  column 8 j + 2 (t % 4) + i % 2.
// Call wgmma_fence() before the first wgmma() of a group, wgmma_commit() after the last, then wgmma_wait(), and
// wgmma_fence_operand() for the registers that the group reads or writes.

#include <cstdint>
#include <type_traits>

#include "kernels/device/fp16.hpp"
#include "kernels/device/gemm_op.cuh"
#include "kernels/hopper/sm90.cuh"

namespace nanorun::kernels::cuda::sm90 {

/// Shared memory (smem) descriptor of an operand that begins at `shared`, in the 128-byte swizzle. K-major, with the
/// reduction index along a row: leading_bytes is unused. MN-major, with the reduction index across rows: the next 64 of
/// the other index lie leading_bytes further.
__device__ __forceinline__ std::uint64_t smem_descriptor(std::uint32_t shared, int leading_bytes = 16) {
  constexpr std::uint64_t swizzle_128 = 1ull << 62, eight_rows = 1024 / 16;
  return swizzle_128 | eight_rows << 32 | static_cast<std::uint64_t>(leading_bytes / 16) << 16 |
         ((shared & 0x3FFFF) >> 4);
}

/// Descriptor of the operand `bytes` further.
__device__ __forceinline__ std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  return descriptor + bytes / 16;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until all but the newest `pending` committed groups are complete.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from moving accesses of registers that wgmma reads or writes across this point.
template <int n>
__device__ __forceinline__ void wgmma_fence_operand(float (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int n>
__device__ __forceinline__ void wgmma_fence_operand(std::uint32_t (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// What a thread holds of a warpgroup's product [64, cols].
template <int cols>
using Accumulator = float[cols / 2];
/// What a thread holds of a warpgroup's operand a [64, cols] of bf16 in registers: the pairs of an accumulator of the
/// same shape.
template <int cols>
using RegisterOperand = std::uint32_t[cols / 4];

#define NANORUN_D8(d, i)                                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define NANORUN_D32(d, i) NANORUN_D8(d, i), NANORUN_D8(d, i + 8), NANORUN_D8(d, i + 16), NANORUN_D8(d, i + 24)
#define NANORUN_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NANORUN_R32                                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, "                                                                                                          \
  "%25, %26, %27, %28, %29, %30, %31"
#define NANORUN_R64                                                                                                  \
  NANORUN_R32                                                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NANORUN_R128                                                                                                 \
  NANORUN_R64                                                                                                        \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85"   \
  ", %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106" \
  ", %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
  "%125, %126, %127"

/// d [64, 32] (+)= a [64, 16] b [16, 32], both operands in shared memory.
template <Major major_a, Major major_b>
__device__ __forceinline__ void wgmma(Accumulator<32>& d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NANORUN_R16 "}, %16, %17, p, 1, 1, %19, %20;\n}\n"
      : NANORUN_D8(d, 0), NANORUN_D8(d, 8)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(major_a)),
        "n"(static_cast<int>(major_b)));
}

/// d [64, 64] (+)= a [64, 16] b [16, 64], both operands in shared memory.
template <Major major_a, Major major_b>
__device__ __forceinline__ void wgmma(Accumulator<64>& d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANORUN_R32 "}, %32, %33, p, 1, 1, %35, %36;\n}\n"
      : NANORUN_D32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(major_a)),
        "n"(static_cast<int>(major_b)));
}

#define NANORUN_WGMMA_128(operands)                                                                                   \
  asm volatile(                                                                                                       \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." operands " {" NANORUN_R64 "}, %64, %65, p, 1, 1, %67, %68;\n}\n" \
      : NANORUN_D32(d, 0), NANORUN_D32(d, 32)                                                                         \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(major_a)),                            \
        "n"(static_cast<int>(major_b)))

/// d [64, 128] (+)= a [64, 16] b [16, 128], both operands of T = bf16 or fp16 in shared memory.
template <Major major_a, Major major_b, class T = bf16>
__device__ __forceinline__ void wgmma(Accumulator<128>& d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  if constexpr (std::is_same_v<T, bf16>) {
    NANORUN_WGMMA_128("bf16.bf16");
  } else {
    NANORUN_WGMMA_128("f16.f16");
  }
}
#undef NANORUN_WGMMA_128

#define NANORUN_WGMMA_256(operands)                                                              \
  asm volatile(                                                                                  \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                              \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." operands " {" NANORUN_R128                  \
      "}, %128, %129, p, 1, 1, %131, %132;\n}\n"                                                 \
      : NANORUN_D32(d[0], 0), NANORUN_D32(d[0], 32), NANORUN_D32(d[1], 0), NANORUN_D32(d[1], 32) \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(major_a)),       \
        "n"(static_cast<int>(major_b)))

/// d [64, 256] (+)= a [64, 16] b [16, 256], as above; d[1] has the columns from 128 on.
template <Major major_a, Major major_b, class T>
__device__ __forceinline__ void wgmma(Accumulator<128> (&d)[2], std::uint64_t a, std::uint64_t b, bool accumulate) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  if constexpr (std::is_same_v<T, bf16>) {
    NANORUN_WGMMA_256("bf16.bf16");
  } else {
    NANORUN_WGMMA_256("f16.f16");
  }
}
#undef NANORUN_WGMMA_256

#define NANORUN_WGMMA_FP8(operands)                                                                         \
  asm volatile(                                                                                             \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." operands " {" NANORUN_R64 "}, %64, %65, p, 1, 1;\n}\n" \
      : NANORUN_D32(d, 0), NANORUN_D32(d, 32)                                                               \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))

/// d [64, 128] (+)= a [64, 32] b [32, 128], a of A = e4m3 or e5m2 and b of e4m3, both K-major in shared memory. The sum
/// is not fp32: it has about 14 bits.
template <class A>
__device__ __forceinline__ void wgmma_fp8(Accumulator<128>& d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  if constexpr (std::is_same_v<A, e4m3>) {
    NANORUN_WGMMA_FP8("e4m3.e4m3");
  } else {
    NANORUN_WGMMA_FP8("e5m2.e4m3");
  }
}
#undef NANORUN_WGMMA_FP8

/// d [64, 64] (+)= a [64, 16] b [16, 64], a in registers: a[2 j + i] holds, as pairs of bf16, what d[8 j + 2 i] and
/// d[8 j + 2 i + 1] would hold of an m64n16 accumulator.
template <Major major_b>
__device__ __forceinline__ void wgmma(Accumulator<64>& d, const std::uint32_t* a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANORUN_R32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : NANORUN_D32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(major_b)));
}

/// d [64, 128] (+)= a [64, 16] b [16, 128], a in registers as above.
template <Major major_b>
__device__ __forceinline__ void wgmma(Accumulator<128>& d, const std::uint32_t* a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NANORUN_R64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
      : NANORUN_D32(d, 0), NANORUN_D32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(major_b)));
}

#define NANORUN_WGMMA_FP8(operands)                                            \
  asm volatile(                                                                \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                             \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." operands " {" NANORUN_R64 \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"                            \
      : NANORUN_D32(d, 0), NANORUN_D32(d, 32)                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))

/// d [64, 128] (+)= a [64, 32] b [32, 128], a in registers and b K-major in shared memory, with sums as above. A and B
/// are e4m3 or e5m2, not both e5m2. Thread t holds in a[2 j + i], as bytes, row 16 (t / 32) + t % 32 / 4 + 8 i of a,
/// columns 16 j + 4 (t % 4) to 16 j + 4 (t % 4) + 3.
template <class A, class B>
__device__ __forceinline__ void wgmma_fp8(Accumulator<128>& d, const std::uint32_t (&a)[4], std::uint64_t b,
                                          bool accumulate) {
  if constexpr (std::is_same_v<A, e5m2>) {
    static_assert(std::is_same_v<B, e4m3>);
    NANORUN_WGMMA_FP8("e5m2.e4m3");
  } else if constexpr (std::is_same_v<B, e5m2>) {
    NANORUN_WGMMA_FP8("e4m3.e5m2");
  } else {
    NANORUN_WGMMA_FP8("e4m3.e4m3");
  }
}
#undef NANORUN_WGMMA_FP8

#undef NANORUN_R128
#undef NANORUN_R64
#undef NANORUN_R32
#undef NANORUN_R16
#undef NANORUN_D32
#undef NANORUN_D8

}  // namespace nanorun::kernels::cuda::sm90
