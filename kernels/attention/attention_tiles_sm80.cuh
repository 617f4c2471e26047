#pragma once
// Shared by the two directions of attention for compute capability 8.0 and up: tiles in shared memory, which threads
// copy by cp.async, and products of a warp by mma.sync.

#include "kernels/ampere/sm80.cuh"
#include "kernels/attention/attention_tiles.cuh"

namespace nanorun::kernels::cuda::ampere {

using sm80::columns_first;
using sm80::MatrixLane;
using sm80::rows_first;

/// Of the rows of one head of x [T, H D], the 16-byte chunk that a thread copies: of rows r0, r0 + pass, ... of a tile.
/// A thread block of `threads` copies `pass` rows at a time. Row r of a sequence is head `head` + (r % parts) heads /
/// parts of token r / parts, where heads are paired (parts = 2), or of `head`.
template <int head_dim, int threads>
struct RowChunks {
  static constexpr int chunks = head_dim / 8, pass = threads / chunks;

  /// `heads` attend apart from each other. `token_rows_log2` is 1 where heads are paired.
  template <class T>
  __device__ __forceinline__ static T* of(const Mat<T>& x, int head, int heads, int token_rows_log2, int row) {
    const int r = row + static_cast<int>(threadIdx.x) / chunks, part = r & token_rows_log2;
    return x.data + static_cast<std::ptrdiff_t>(r >> token_rows_log2) * x.ld + (part * heads + head) * head_dim +
           threadIdx.x % chunks * 8;
  }
  /// Issues the copies of rows [row, row + rows) to `tile`.
  template <int rows>
  __device__ __forceinline__ static void load(std::uint32_t tile, const Mat<const bf16>& x, int head, int heads,
                                              int token_rows_log2, int row) {
    static_assert(rows % pass == 0 && pass % 8 == 0);
    const bf16* from = of(x, head, heads, token_rows_log2, row);
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(pass >> token_rows_log2) * x.ld;
    const std::uint32_t to = tile + sm80::chunk_at<head_dim * 2>(threadIdx.x / chunks, threadIdx.x % chunks);
#pragma unroll
    for (int i = 0; i < rows / pass; ++i, from += stride) sm80::cp_async(to + i * pass * head_dim * 2, from);
  }
  /// Stores `tile` as rows [row, row + rows).
  template <int rows>
  __device__ __forceinline__ static void store(const Mat<bf16>& x, const std::byte* tile, int head, int heads,
                                               int token_rows_log2, int row) {
    static_assert(rows % pass == 0 && pass % 8 == 0);
    bf16* to = of(x, head, heads, token_rows_log2, row);
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(pass >> token_rows_log2) * x.ld;
    const std::byte* from = tile + sm80::chunk_at<head_dim * 2>(threadIdx.x / chunks, threadIdx.x % chunks);
#pragma unroll
    for (int i = 0; i < rows / pass; ++i, to += stride) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from + i * pass * head_dim * 2);
    }
  }
};

/// What a lane holds of a warp's matrix [16 m, columns], 16 rows in each fragment: x[i][4 j + k] is
///   row 16 i + lane / 4 + 8 (k / 2),  column 8 j + 2 (lane % 4) + k % 2.
template <int m, int columns>
using Fragments = float[m][columns / 2];

template <int m, int n>
__device__ __forceinline__ void clear(float (&x)[m][n]) {
#pragma unroll
  for (int i = 0; i < m; ++i) {
#pragma unroll
    for (int j = 0; j < n; ++j) x[i][j] = 0;
  }
}

/// x [16 m, 2 n] += a b, over `depth`. load_a(a, row, k) loads the operand a of rows [row, row + 16) and k [k, k + 16),
/// load_b(b, column, k) those of columns [column, column + 8) and [column + 8, column + 16).
template <int depth, int m, int n, class LoadA, class LoadB>
__device__ __forceinline__ void multiply(float (&x)[m][n], const LoadA& load_a, const LoadB& load_b) {
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    std::uint32_t a[m][4];
#pragma unroll
    for (int i = 0; i < m; ++i) load_a(a[i], 16 * i, k);
#pragma unroll
    for (int column = 0; column < 2 * n; column += 16) {
      std::uint32_t b[4];
      load_b(b, column, k);
#pragma unroll
      for (int i = 0; i < m; ++i) {
        mma(x[i] + column / 2, a[i], b);
        mma(x[i] + column / 2 + 4, a[i], b + 2);
      }
    }
  }
}

/// A warp leaves x, rounded, in rows [row, row + 16 m) and columns [column, column + 2 n) of a tile.
template <int row_bytes, int m, int n>
__device__ __forceinline__ void write_rounded(std::byte* tile, int row, int column, const float (&x)[m][n],
                                              float factor = 1) {
  const int lane = threadIdx.x % warp_size;
#pragma unroll
  for (int i = 0; i < m; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::byte* const to = tile + lane % 4 * 4;
      const int at = row + 16 * i + 8 * r + lane / 4;
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
        *reinterpret_cast<std::uint32_t*>(to + sm80::chunk_at<row_bytes>(at, column / 8 + j)) =
            pack_bf16(x[i][4 * j + 2 * r] * factor, x[i][4 * j + 2 * r + 1] * factor);
      }
    }
  }
}

/// Whether the shared memory of an SM holds that of so many thread blocks.
template <class Shared>
bool fits(int blocks) {
  return shared_memory_holds(blocks, sizeof(Shared));
}

/// Launches with the dynamic shared memory that `Shared` needs.
template <class Shared, class... Parameters, class... Arguments>
void launch_attention(const char* name, void (*kernel)(Parameters...), int blocks, int threads, Stream stream,
                      const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)), name);
  launch(name, stream, kernel, blocks, threads, sizeof(Shared), arguments...);
}

}  // namespace nanorun::kernels::cuda::ampere
