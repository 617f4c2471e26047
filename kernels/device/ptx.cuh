#pragma once
// PTX that GPUs of compute capability 8.0 and later have, and CUDA C++ does not express: conversions, fast functions,
// matrices of a warp, asynchronous copies. Hopper's own is in kernels/hopper. Names follow the PTX manual. Shared
// memory is addressed by 32-bit integers (shared_address).

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nanorun::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile of rows of 128 bytes, in the 128-byte swizzle.
__device__ __forceinline__ std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// Named barriers: the block's 16 hardware barriers, of which __syncthreads uses 0. Waits for `threads` threads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as one of the `threads` threads without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// (low, high) as a pair of bf16.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// (max(low, 0), max(high, 0)) as a pair of bf16; NaN stays NaN.
__device__ __forceinline__ std::uint32_t pack_bf16_relu(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The larger of each of two pairs of bf16; of a number and NaN the number.
__device__ __forceinline__ std::uint32_t max_bf16(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

/// 2^x; 0 for minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The smaller; NaN if either is.
__device__ __forceinline__ float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

/// 1 / x, to about 2^-23 of itself.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Square root, to about 2^-23 of itself.
__device__ __forceinline__ float sqrt_fast(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Loads four 8 x 8 matrices of bf16 to where stmatrix() takes them from.
__device__ __forceinline__ void ldmatrix(std::uint32_t* r, std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// ldmatrix() that transposes each matrix.
__device__ __forceinline__ void ldmatrix_transposed(std::uint32_t* r, std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// A warp's d [16, 8] += a [16, 16] b [16, 8]. With r = t / 4 and c = 2 (t % 4), thread t holds d[r + 8 (i / 2)][c + i
/// % 2] in its d[i], the pair a[r + 8 i][8 j + c, + 1] in its a[2 j + i], and the pair b[8 i + c, + 1][r] in its b[i].
/// Pairs are bf16.
__device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Copies 16 bytes to shared memory, or zeros, not waited for.
__device__ __forceinline__ void cp_async(std::uint32_t shared, const void* global, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(zeros ? 0 : 16)
               : "memory");
}

/// Waits for this thread's copies.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ int load_acquire(const int* x) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(x) : "memory");
  return value;
}

/// Stores what other blocks read by load_acquire(): they then see what this thread has seen and written. No other
/// thread writes x.
__device__ __forceinline__ void store_release(int* x, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(x), "r"(value) : "memory");
}

}  // namespace nanorun::kernels::cuda
