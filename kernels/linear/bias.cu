#include "kernels/linear/bias.hpp"

#include "kernels/device/column_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A warp for each row.
__global__ void __launch_bounds__(block_threads) add_bias_kernel(Mat<bf16> out, const float* b) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= out.rows) return;
  for (int col = 8 * lane; col < out.cols; col += 8 * warp_size) {
    Vector<float, 8> x = load_floats<8>(out.row(row) + col);
    const Vector<float, 8> by = load_vector<8>(b + col);
#pragma unroll
    for (int k = 0; k < 8; ++k) x.v[k] += by.v[k];
    store_rounded(out.row(row) + col, x);
  }
}

__global__ void __launch_bounds__(block_threads, resident_per_sm)
    bias_backward_kernel(float* d_b, Mat<const bf16> d_out, OrderedSum total) {
  begin_after_previous();
  add_column_sums(
      d_b, d_out.rows, d_out.cols, total, [&](int row, int col) { return load_vector<8>(d_out.row(row) + col); },
      [](int, int, const Vector<bf16, 8>& x) { return to_floats(x); });
}

}  // namespace

template <class T>
void add_bias(Stream stream, Mat<T> out, Vec<const acc_t<T>> b) {
  constexpr const char* op = "add_bias";
  require_vectors(op, out);
  require_vectors(op, Mat<const float>(b.data(), 1, out.cols));
  if (out.rows == 0) return;
  launch(op, stream, add_bias_kernel, row_blocks(out.rows), block_threads, 0, out, b.data());
}

template <class T>
void bias_backward(Stream stream, Vec<acc_t<T>> d_b, Mat<const T> d_out) {
  constexpr const char* op = "bias_backward";
  require_vectors(op, d_out);
  if (d_out.rows == 0) return;
  launch(op, stream, bias_backward_kernel, column_sum_blocks(op, d_out.rows, d_out.cols), block_threads, 0, d_b.data(),
         d_out, OrderedSum(stream));
}

template void add_bias(Stream, Mat<bf16>, Vec<const float>);
template void bias_backward<bf16>(Stream, Vec<float>, Mat<const bf16>);

}  // namespace nanorun::kernels::cuda
