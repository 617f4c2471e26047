#pragma once
// PTX of compute capability 8.0 that only the bodies for it use: groups of asynchronous copies, products of fp16. What
// neutral kernels use too (ldmatrix, mma of bf16, a copy that waits for nothing) is in device/ptx.cuh. Names follow the
// PTX manual.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/fp16.hpp"
#include "kernels/device/ptx.cuh"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda::sm80 {

/// Copies 16 bytes to shared memory, not waited for. Both addresses are multiples of 16. Goes past L1.
__device__ __forceinline__ void cp_async(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/// Copies 8 bytes; both addresses are multiples of 8. Goes through L1.
__device__ __forceinline__ void cp_async_8(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(global) : "memory");
}

/// Copies the first `bytes` of 16, and zeros in the place of the others.
__device__ __forceinline__ void cp_async_part(std::uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/// Ends a group: the copies that this thread has issued since the group before. A group may be empty.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all but this thread's newest `pending` groups are complete. A barrier must follow before others read.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile of rows of `row_bytes`, a multiple of 128. The same
/// chunk of eight rows lies in different banks. With 128 bytes this is swizzled().
template <int row_bytes>
__device__ __forceinline__ std::uint32_t chunk_at(int row, int chunk) {
  static_assert(row_bytes % 128 == 0);
  return static_cast<std::uint32_t>(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

/// A lane's address for ldmatrix() in a tile of chunk_at(). at(row, column) is that of the 16 x 16 elements, of 16
/// bits, that begin there; both are multiples of 16.
template <int row_bytes>
struct MatrixLane {
  std::uint32_t rows;   ///< of this lane's row among the 16
  std::uint32_t chunk;  ///< swizzled, in bytes

  __device__ __forceinline__ std::uint32_t at(int row, int column) const {
    return rows + row * row_bytes + (chunk ^ (column * 2));
  }
};

/// The four 8 x 8 matrices in the order of operand a of mma, whose rows are the tile's; with ldmatrix_transposed() in
/// the order of two operands b, of eight columns each, whose rows are the tile's.
template <int row_bytes>
__device__ __forceinline__ MatrixLane<row_bytes> rows_first(std::uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return {tile + lane % 16 * row_bytes, static_cast<std::uint32_t>((lane / 16 ^ lane % 8) << 4)};
}

/// In the order of two operands b, of eight columns each, whose columns are the tile's rows; with ldmatrix_transposed()
/// in the order of operand a, whose columns are the tile's rows.
template <int row_bytes>
__device__ __forceinline__ MatrixLane<row_bytes> columns_first(std::uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return {tile + (lane / 16 * 8 + lane % 8) * row_bytes, static_cast<std::uint32_t>((lane / 8 % 2 ^ lane % 8) << 4)};
}

/// mma() of T = bf16 or fp16.
template <class T>
__device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  if constexpr (std::is_same_v<T, bf16>) {
    cuda::mma(d, a, b);
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

}  // namespace nanorun::kernels::cuda::sm80
