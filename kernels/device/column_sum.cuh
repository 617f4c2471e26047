#pragma once
// Sums down the columns of matrices [rows, cols], in a fixed order. A thread block takes a strip of columns; as many
// blocks share the rows of each strip as run at once, so that each goes through many rows without a pause.

#include <algorithm>

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {

constexpr int column_strip = 8 * warp_size;  // columns of a block, of which each warp takes whole rows
static_assert(column_strip == block_threads);

/// Blocks of a kernel that calls add_column_sums(). Throws std::invalid_argument where there are too many columns.
inline int column_sum_blocks(const char* op, int rows, int cols) {
  const int strips = ceil_div(cols, column_strip);
  const int most = OrderedSum::max_blocks(op, column_strip * sizeof(float), strips);
  if (strips > OrderedSum::max_groups) throw std::invalid_argument(std::string(op) + ": too many columns");
  return strips * std::clamp(std::min(resident_blocks(), most) / strips, 1, ceil_div(rows, block_warps));
}

/// sums[j] += the sum over all rows of element j of a row. load(row, col) gives what body(row, col, loaded) needs for
/// the elements [col, col + 8) that it returns, col being a multiple of 8; a thread loads for several rows before it
/// calls body for them. All threads of a grid with column_sum_blocks() call it, once. The columns are a multiple of 8.
template <class Load, class Body>
__device__ void add_column_sums(float* sums, int rows, int cols, const OrderedSum& total, const Load& load,
                                const Body& body) {
  using Loaded = decltype(load(0, 0));
  constexpr int batch = sizeof(Loaded) <= 32 ? 8 : 3;  // rows on their way, as the registers allow
  __shared__ alignas(16) float by_warp[block_warps][column_strip];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  const int sharing = static_cast<int>(gridDim.x) / ceil_div(cols, column_strip);  // blocks of a strip
  const int block = static_cast<int>(blockIdx.x), first = block / sharing * column_strip, col = first + 8 * lane;
  const int row_end = col < cols ? rows : 0, step = sharing * block_warps;
  Vector<float, 8> sum{};
  for (int base = block % sharing * block_warps + warp; base < row_end; base += batch * step) {
    Loaded loaded[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (base + i * step < row_end) loaded[i] = load(base + i * step, col);
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (base + i * step >= row_end) break;
      const Vector<float, 8> x = body(base + i * step, col, loaded[i]);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum.v[k] += x.v[k];
    }
  }
  store_vector(&by_warp[warp][8 * lane], sum);
  __syncthreads();
  float of_column = 0;
#pragma unroll
  for (int w = 0; w < block_warps; ++w) of_column += by_warp[w][threadIdx.x];
  total.partial<float>(column_strip)[threadIdx.x] = of_column;
  total.finish_groups<float>(sharing, column_strip, [=](int i, float strip_sum) {
    if (first + i < cols) sums[first + i] += strip_sum;
  });
}

}  // namespace nanorun::kernels::cuda
