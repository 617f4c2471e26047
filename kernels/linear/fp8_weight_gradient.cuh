#pragma once
// What the bodies of weight gradients with operands in 8 bits share: a transposed in registers, and sums over parts.

#include <algorithm>

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda::weight_gradient {

/// A warp's 16 columns of a tile of a, `steps` times 32 rows of 128 bytes by swizzled(), as operands, transposed: rows
/// t / 4 and t / 4 + 8 of thread t are columns 2 (t / 4) and 2 (t / 4) + 1. ldmatrix transposes pairs of bytes. The
/// first two of its matrices together are 16 rows of a. Each has two rows of every four: of the rows 0 to 7 the first
/// two or the last two, of the rows 8 to 15 the other two. So no banks conflict, and threads with t % 4 >= 2 find the
/// two pairs swapped.
template <int steps>
class TransposedColumns {
 public:
  /// `chunk`: which 16 columns.
  __device__ explicit TransposedColumns(int chunk) {
    const int lane = threadIdx.x % warp_size, matrix = lane / 8, line = lane % 8;
    const int second_two = matrix % 2 ^ line / 4;
    offset_ = swizzled(16 * (matrix / 2) + line / 2 * 4 + 2 * second_two + line % 2, chunk);
    const bool swapped = lane % 4 >= 2;
    even_ = swapped ? 0x2064 : 0x6420;
    odd_ = swapped ? 0x3175 : 0x7531;
  }

  /// Pairs of bytes as ldmatrix leaves them.
  using Pairs = std::uint32_t[steps][4];

  __device__ __forceinline__ void load(Pairs& pairs, const std::byte* a) const {
    const std::uint32_t at = shared_address(a) + offset_;
#pragma unroll
    for (int k = 0; k < steps; ++k) ldmatrix_transposed(pairs[k], at + 32 * 128 * k);
  }
  __device__ __forceinline__ void to_operands(std::uint32_t (&operands)[steps][4], const Pairs& pairs) const {
#pragma unroll
    for (int k = 0; k < steps; ++k) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        operands[k][j] = __byte_perm(pairs[k][j], pairs[k][j + 1], even_);
        operands[k][j + 1] = __byte_perm(pairs[k][j], pairs[k][j + 1], odd_);
      }
    }
  }

 private:
  std::uint32_t offset_, even_, odd_;
};

/// Parts of the rows with which `tiles` occupy the GPU about evenly in all waves, as few as possible; each has some
/// k-tiles of 128 rows. `at_once`: tiles that run at the same time.
inline int parts_of(int tiles, int at_once, int inner) {
  constexpr int most = 16, fewest_k_tiles = 8;
  constexpr double enough = 0.9;
  int best = 1;
  double best_share = 0;
  for (int parts = 1; parts <= most && parts * fewest_k_tiles <= std::max(ceil_div(inner, 128), fewest_k_tiles);
       ++parts) {
    const double share = static_cast<double>(tiles * parts) / (ceil_div(tiles * parts, at_once) * at_once);
    if (share > best_share) best = parts;
    best_share = std::max(best_share, share);
    if (share >= enough) break;
  }
  return best;
}

constexpr int square = 32;

/// d_w = or += factor times the sum of the parts [parts, rows, cols], or its transpose. A block has a square of it,
/// which passes through shared memory.
template <bool transposes>
__global__ void __launch_bounds__(block_threads)
    sum_parts(Mat<float> d_w, const float* partial, int parts, int rows, int cols, const float* factor, bool add) {
  __shared__ float tile[square][square + 1];
  begin_after_previous();
  const int first_row = blockIdx.y * square, first_col = blockIdx.x * square, lane = threadIdx.x % square;
  const float f = *factor;
  for (int i = threadIdx.x / square; i < square; i += block_threads / square) {
    const int row = first_row + i, col = first_col + lane;
    if (row >= rows || col >= cols) continue;
    float sum = 0;
    for (int part = 0; part < parts; ++part) {
      sum += __ldcs(partial + (static_cast<std::size_t>(part) * rows + row) * cols + col);
    }
    if constexpr (transposes) {
      tile[i][lane] = f * sum;
    } else {
      float& out = d_w.row(row)[col];
      out = add ? out + f * sum : f * sum;
    }
  }
  if constexpr (transposes) {
    __syncthreads();
    for (int i = threadIdx.x / square; i < square; i += block_threads / square) {
      const int row = first_row + lane, col = first_col + i;
      if (row >= rows || col >= cols) continue;
      float& out = d_w.row(col)[row];
      out = add ? out + tile[lane][i] : tile[lane][i];
    }
  }
}

/// Sums up the parts of a gradient [rows, cols].
inline void launch_sum_parts(Stream stream, Mat<float> d_w, bool transposes, Output output, const float* factor,
                             const float* partial, int parts, int rows, int cols) {
  const dim3 grid(ceil_div(cols, square), ceil_div(rows, square));
  launch("fp8_weight_gradient_sum", stream, transposes ? sum_parts<true> : sum_parts<false>, grid, block_threads, 0,
         d_w, partial, parts, rows, cols, factor, output == Output::accumulate);
}

}  // namespace nanorun::kernels::cuda::weight_gradient
