#pragma once
// Largest magnitudes of bf16. Magnitudes and the bits of floats have the same order. NaN does not count.

#include <cstdint>

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {

/// Keeps the largest magnitude seen so far at even and at odd indices, as a pair of bf16. `largest` begins at zero.
__device__ inline void keep_larger(std::uint32_t& largest, const Vector<bf16, 8>& x) {
#pragma unroll
  for (const std::uint32_t pair : x.pair) largest = max_bf16(largest, pair & 0x7FFF7FFFu);
}

/// The larger of two numbers that are not negative, as the bits of a float.
__device__ inline unsigned larger_of(std::uint32_t pair) { return max(pair << 16, pair & 0xFFFF0000u); }

/// *maximum = max(*maximum, the number with these bits); neither is negative.
__device__ inline void raise(float* maximum, unsigned bits) {
  atomicMax(reinterpret_cast<int*>(maximum), static_cast<int>(bits));
}

/// *maximum = max(*maximum, what each thread has found), by one atomic. All threads of a block of block_threads call it
/// once.
__device__ inline void raise_by_block(float* maximum, std::uint32_t largest) {
  __shared__ unsigned largest_of_warp[block_warps];
  const unsigned in_warp = __reduce_max_sync(~0u, larger_of(largest));
  if (threadIdx.x % warp_size == 0) largest_of_warp[threadIdx.x / warp_size] = in_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned in_block = 0;
  for (const unsigned bits : largest_of_warp) in_block = max(in_block, bits);
  raise(maximum, in_block);
}

}  // namespace nanorun::kernels::cuda
