#include "kernels/stream/gain.hpp"

#include "kernels/device/column_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

__device__ Vector<float, 8> product(const Vector<float, 8>& x, const Vector<float, 8>& y) {
  Vector<float, 8> z;
#pragma unroll
  for (int k = 0; k < 8; ++k) z.v[k] = x.v[k] * y.v[k];
  return z;
}

/// A warp for each row.
__global__ void __launch_bounds__(block_threads) gain_forward_kernel(Mat<bf16> out, Mat<const bf16> n, const float* g) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= out.rows) return;
  for (int col = 8 * lane; col < out.cols; col += 8 * warp_size) {
    store_rounded(out.row(row) + col, product(load_floats<8>(n.row(row) + col), load_vector<8>(g + col)));
  }
}

__global__ void __launch_bounds__(block_threads, resident_per_sm)
    gain_backward_kernel(Mat<bf16> d_n, float* d_g, Mat<const bf16> d_out, Mat<const bf16> n, const float* g,
                         OrderedSum total) {
  begin_after_previous();
  struct Loaded {
    Vector<bf16, 8> d, x;
  };
  const auto load = [&](int row, int col) -> Loaded {
    return {load_vector<8>(d_out.row(row) + col), load_vector<8>(n.row(row) + col)};
  };
  add_column_sums(d_g, d_out.rows, d_out.cols, total, load, [&](int row, int col, const Loaded& at) {
    const Vector<float, 8> d = to_floats(at.d);
    store_rounded(d_n.row(row) + col, product(d, load_vector<8>(g + col)));
    return product(d, to_floats(at.x));
  });
}

__global__ void __launch_bounds__(block_threads, resident_per_sm)
    gain_unfold_kernel(Mat<float> d_w, bool adds, float* d_g, Mat<const float> d_folded, Mat<const bf16> w,
                       const float* g, OrderedSum total) {
  begin_after_previous();
  struct Loaded {
    Vector<float, 8> d, before;
    Vector<bf16, 8> w;
  };
  const auto load = [&](int row, int col) {
    Loaded at{load_vector<8>(d_folded.row(row) + col), {}, load_vector<8>(w.row(row) + col)};
    if (adds) at.before = load_vector<8>(d_w.row(row) + col);
    return at;
  };
  add_column_sums(d_g, w.rows, w.cols, total, load, [&](int row, int col, const Loaded& at) {
    Vector<float, 8> of_w = product(at.d, load_vector<8>(g + col));
#pragma unroll
    for (int k = 0; k < 8; ++k) of_w.v[k] += at.before.v[k];
    store_vector(d_w.row(row) + col, of_w);
    return product(at.d, to_floats(at.w));
  });
}

void require_gain(const char* op, Vec<const float> g) {
  require_vectors(op, Mat<const float>(g.data(), 1, static_cast<int>(g.size())));
}

}  // namespace

template <class T>
void gain_forward(Stream stream, Mat<T> out, Mat<const T> n, Vec<const acc_t<T>> g) {
  constexpr const char* op = "gain_forward";
  require_vectors(op, out);
  require_vectors(op, n);
  require_gain(op, g);
  if (out.rows == 0) return;
  launch(op, stream, gain_forward_kernel, row_blocks(out.rows), block_threads, 0, out, n, g.data());
}

template <class T>
void gain_backward(Stream stream, Mat<T> d_n, Vec<acc_t<T>> d_g, Mat<const T> d_out, Mat<const T> n,
                   Vec<const acc_t<T>> g) {
  constexpr const char* op = "gain_backward";
  require_vectors(op, d_n);
  require_vectors(op, d_out);
  require_vectors(op, n);
  require_gain(op, g);
  if (d_out.rows == 0) return;
  launch(op, stream, gain_backward_kernel, column_sum_blocks(op, d_out.rows, d_out.cols), block_threads, 0, d_n,
         d_g.data(), d_out, n, g.data(), OrderedSum(stream));
}

template <class T>
void gain_unfold(Stream stream, Mat<acc_t<T>> d_w, Output output, Vec<acc_t<T>> d_g, Mat<const acc_t<T>> d_folded,
                 Mat<const T> w, Vec<const acc_t<T>> g) {
  constexpr const char* op = "gain_unfold";
  require_vectors(op, d_w);
  require_vectors(op, d_folded);
  require_vectors(op, w);
  require_gain(op, g);
  if (w.rows == 0) return;
  launch(op, stream, gain_unfold_kernel, column_sum_blocks(op, w.rows, w.cols), block_threads, 0, d_w,
         output == Output::accumulate, d_g.data(), d_folded, w, g.data(), OrderedSum(stream));
}

template void gain_forward(Stream, Mat<bf16>, Mat<const bf16>, Vec<const float>);
template void gain_backward(Stream, Mat<bf16>, Vec<float>, Mat<const bf16>, Mat<const bf16>, Vec<const float>);
template void gain_unfold(Stream, Mat<float>, Output, Vec<float>, Mat<const float>, Mat<const bf16>, Vec<const float>);

}  // namespace nanorun::kernels::cuda
