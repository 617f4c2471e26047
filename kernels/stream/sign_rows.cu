#include "kernels/stream/sign_rows.hpp"

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A warp for each row.
__global__ void __launch_bounds__(block_threads)
    sign_rows_kernel(Mat<bf16> x, Mat<const bf16> signs, const std::int32_t* index) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= x.rows) return;
  const bf16* const sign = signs.row(index[row]);
  for (int col = 8 * lane; col < x.cols; col += 8 * warp_size) {
    Vector<float, 8> value = load_floats<8>(x.row(row) + col);
    const Vector<float, 8> by = load_floats<8>(sign + col);
#pragma unroll
    for (int j = 0; j < 8; ++j) value.v[j] *= by.v[j];
    store_rounded(x.row(row) + col, value);
  }
}

}  // namespace

template <class T>
void sign_rows(Stream stream, Mat<T> x, Mat<const T> signs, Vec<const std::int32_t> index) {
  constexpr const char* op = "sign_rows";
  require_vectors(op, x);
  require_vectors(op, signs);
  if (x.rows == 0) return;
  launch(op, stream, sign_rows_kernel, row_blocks(x.rows), block_threads, 0, x, signs, index.data());
}

template void sign_rows(Stream, Mat<bf16>, Mat<const bf16>, Vec<const std::int32_t>);

}  // namespace nanorun::kernels::cuda
