#pragma once
// Mainloop of GEMMs by mma.sync: a ring of k-tiles in shared memory, filled by cp.async ahead of time. A thread block
// of four warps computes 64 `parts` rows and 128 columns, each warp 16 `parts` rows of them: shared memory is the
// bottleneck, and a fragment of b that a warp loads serves all of its parts. Two blocks share an SM, and one's epilogue
// overlaps the other's mainloop.

#include <algorithm>
#include <utility>

#include "kernels/ampere/sm80.cuh"
#include "kernels/ampere/sm89.cuh"
#include "kernels/device/gemm_op.cuh"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda::ampere {

constexpr int part_rows = 16;  // rows of one mma
constexpr int gemm_warps = 4, gemm_threads = gemm_warps * warp_size, blocks_per_sm = 2;
constexpr int tile_n = gemm_columns, tile_k = 32;
/// Rows of a block whose warps have so many parts.
constexpr int tile_rows(int parts) { return gemm_warps * parts * part_rows; }

/// Where rows have 64 bytes: byte offset of a 16-byte chunk. The same chunk of eight rows lies in different banks.
__device__ __forceinline__ std::uint32_t narrow_chunk_at(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 64 + ((chunk ^ (row / 2 & 3)) << 4));
}

/// k-tiles of both operands: of a [tile_rows(parts), tile_k] and b [tile_n, tile_k] rows of 64 bytes by
/// narrow_chunk_at(), of b [tile_k, tile_n] two panels of 64 columns by swizzled().
template <int parts>
struct alignas(128) KTile {
  std::byte a[tile_rows(parts) * tile_k * 2];
  std::byte b[tile_n * tile_k * 2];
};
constexpr int panel_bytes = tile_k * 128;

/// A thread's part of the copies of tile_rows rows of an operand [rows, k], k along the rows in memory. Rows from
/// `rows` on are zeros.
template <class T, int tile_rows>
struct RowCopies {
  static constexpr int step = gemm_threads / 4, count = tile_rows / step;  // rows that the block copies at a time
  const T* from;
  std::uint32_t at;  ///< offset in the k-tile; those of all copies differ by a multiple of the swizzle's period
  int rows;          ///< of the operand from this thread's first one on
  std::size_t ld;

  __device__ __forceinline__ RowCopies(Mat<const T> x, int row) {
    const int mine = threadIdx.x / 4, chunk = threadIdx.x % 4;
    rows = x.rows - row - mine;
    from = x.data + static_cast<std::size_t>(min(row + mine, x.rows - 1)) * x.ld + 8 * chunk;
    at = narrow_chunk_at(mine, chunk);
    ld = x.ld;
  }
  __device__ __forceinline__ void copy(std::uint32_t tile, int k) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const bool beyond = i * step >= rows;
      cp_async(tile + at + i * step * 64, beyond ? from : from + i * step * ld + k * tile_k, beyond);
    }
  }
};

/// The same of an operand [k, columns]; columns from `columns`, a multiple of 8, on are zeros.
template <class T>
struct ColumnCopies {
  static constexpr int step = gemm_threads / 16, count = tile_k / step;
  const T* from;
  std::uint32_t at;
  bool beyond;
  std::size_t ld;

  __device__ __forceinline__ ColumnCopies(Mat<const T> x, int col) {
    const int row = threadIdx.x / 16, chunk = threadIdx.x % 16;
    beyond = col + 8 * chunk >= x.cols;
    from = x.data + static_cast<std::size_t>(row) * x.ld + (beyond ? 0 : col + 8 * chunk);
    at = chunk / 8 * panel_bytes + swizzled(row, chunk % 8);
    ld = x.ld;
  }
  __device__ __forceinline__ void copy(std::uint32_t tile, int k) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      cp_async(tile + at + i * step * 128, from + static_cast<std::size_t>(k * tile_k + i * step) * ld, beyond);
    }
  }
};

/// How operands of bf16 or fp16 are multiplied; of 8 bits where T is a pair of their types, see sm89.cuh.
template <class T>
struct Multiplication {
  using Element = T;  ///< how an operand is loaded
  static __device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
    sm80::mma<T>(d, a, b);
  }
};
template <class A, class B>
struct Multiplication<std::pair<A, B>> {
  using Element = bf16;
  static __device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
    sm89::mma<A, B>(d, a, b);
  }
};

/// sums += a b of a k-tile, of this warp's rows.
template <class T, Major b_major, int parts>
__device__ __forceinline__ void multiply(GemmFragment (&sums)[parts], const KTile<parts>& tile, int warp) {
  const int lane = threadIdx.x % warp_size;
  const std::uint32_t a_at = shared_address(tile.a), b_at = shared_address(tile.b);
#pragma unroll
  for (int k = 0; k < tile_k / 16; ++k) {
    std::uint32_t a[parts][4];
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const int row = (warp * parts + part) * part_rows + lane % 16;
      ldmatrix(a[part], a_at + narrow_chunk_at(row, 2 * k + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < tile_n / 16; ++n) {
      std::uint32_t b[4];  // two operands b, of eight columns each
      if constexpr (b_major == Major::k) {
        ldmatrix(b, b_at + narrow_chunk_at(16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      } else {
        ldmatrix_transposed(b, b_at + n / 4 * panel_bytes + swizzled(16 * k + lane % 16, n % 4 * 2 + lane / 16));
      }
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        Multiplication<T>::mma(sums[part] + 8 * n, a[part], b);
        Multiplication<T>::mma(sums[part] + 8 * n + 4, a[part], b + 2);
      }
    }
  }
}

/// sums = the product of the rows from `row` of a and the columns from `col` of b, of this warp's rows; k_tiles > 0.
/// `stages`: k-tiles in the ring, 2 or 3. At the end the ring is free: all warps have read it, and no copy is on its
/// way.
template <class T, Major b_major, int parts>
__device__ __forceinline__ void mainloop(GemmFragment (&sums)[parts], KTile<parts>* ring, int stages,
                                         Mat<const typename Multiplication<T>::Element> a,
                                         Mat<const typename Multiplication<T>::Element> b, int row, int col,
                                         int k_tiles) {
  using Element = typename Multiplication<T>::Element;
  using CopiesOfB = std::conditional_t<b_major == Major::k, RowCopies<Element, tile_n>, ColumnCopies<Element>>;
  const RowCopies<Element, tile_rows(parts)> copies_a(a, row);
  const CopiesOfB copies_b(b, col);
  const int warp = __shfl_sync(~0u, threadIdx.x / warp_size, 0);
  const auto load = [&](int k, int stage) {
    if (k < k_tiles) {
      copies_a.copy(shared_address(ring[stage].a), k);
      copies_b.copy(shared_address(ring[stage].b), k);
    }
    sm80::cp_async_commit();  // an empty group keeps the count of those that are waited for
  };
  for (int k = 0; k < stages - 1; ++k) load(k, k);
#pragma unroll
  for (int part = 0; part < parts; ++part) {
#pragma unroll
    for (float& sum : sums[part]) sum = 0;
  }
  int stage = 0;
  for (int k = 0; k < k_tiles; ++k) {
    if (stages == 3) {
      sm80::cp_async_wait<1>();
    } else {
      sm80::cp_async_wait<0>();
    }
    __syncthreads();  // all have copied k-tile k and read the one before, whose place is filled next
    load(k + stages - 1, stage == 0 ? stages - 1 : stage - 1);
    multiply<T, b_major>(sums, ring[stage], warp);
    stage = stage == stages - 1 ? 0 : stage + 1;
  }
  sm80::cp_async_wait<0>();
  __syncthreads();
}

}  // namespace nanorun::kernels::cuda::ampere
