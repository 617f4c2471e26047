#pragma once
// Sums down the columns of matrices [rows, cols], in a fixed order.

#include <algorithm>

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {

/// Blocks of a kernel that calls add_column_sums(). Throws std::invalid_argument where there are too many columns.
inline int column_sum_blocks(const char* op, int rows, int cols) {
  const int most = OrderedSum::max_blocks(op, cols * sizeof(float));
  return std::min({ceil_div(rows, block_warps), resident_blocks(), most});
}

/// sums[j] += the sum over all rows of element j of a row, where body(row, col) gives elements [col, col + 8), col
/// being a multiple of 8. All threads of a grid with column_sum_blocks() call it, once. The columns are a multiple
/// of 8.
template <class Body>
__device__ void add_column_sums(float* sums, int rows, int cols, const OrderedSum& total, const Body& body) {
  constexpr int width = 8 * warp_size;  // columns that a block takes at a time, a warp each of its rows
  static_assert(width == block_threads);
  __shared__ alignas(16) float by_warp[block_warps][width];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  float* const of_block = total.partial<float>(cols);
  for (int first = 0; first < cols; first += width) {
    const int col = first + 8 * lane, row_end = col < cols ? rows : 0;
    Vector<float, 8> sum{};
#pragma unroll 4
    for (int row = blockIdx.x * block_warps + warp; row < row_end; row += gridDim.x * block_warps) {
      const Vector<float, 8> x = body(row, col);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum.v[k] += x.v[k];
    }
    store_vector(&by_warp[warp][8 * lane], sum);
    __syncthreads();
    const int own = first + static_cast<int>(threadIdx.x);
    if (own < cols) {
      float of_column = 0;
#pragma unroll
      for (int w = 0; w < block_warps; ++w) of_column += by_warp[w][threadIdx.x];
      of_block[own] = of_column;
    }
    __syncthreads();  // the next columns' sums take their places
  }
  total.finish<float>(cols, [=](int i, float sum) { sums[i] += sum; });
}

}  // namespace nanorun::kernels::cuda
