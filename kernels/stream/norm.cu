#include "kernels/device/magnitude.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/stream/norm.hpp"

namespace nanorun::kernels::cuda {
namespace {

/// One row by a warp, N vectors of 8 elements for each lane. Returns what keep_larger() found in a lane's part of out.
template <int N, bool shifted>
__device__ std::uint32_t norm_row(int row, const Mat<bf16>& out, float* rstd, const Mat<const bf16>& x, float eps,
                                  const float* shift) {
  const int lane = threadIdx.x % warp_size;
  Vector<bf16, 8> v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col < x.cols) v[i] = load_vector<8>(x.row(row) + col);
  }
  const auto values = [&](int i) {
    Vector<float, 8> y = to_floats(v[i]);
    const int col = 8 * (lane + warp_size * i);
    if (shifted && col < x.cols) {
      const Vector<float, 8> s = load_vector<8>(shift + col);
#pragma unroll
      for (int k = 0; k < 8; ++k) y.v[k] += s.v[k];
    }
    return y;
  };
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) squares += dot(values(i), values(i));
  const float r = rsqrtf(warp_sum(squares) / x.cols + eps);
  if (lane == 0) rstd[row] = r;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    Vector<float, 8> y = values(i);
#pragma unroll
    for (int k = 0; k < 8; ++k) y.v[k] *= r;
    if (col >= x.cols) continue;
    const Vector<bf16, 8> rounded = round_to_bf16(y);
    store_vector(out.row(row) + col, rounded);
    keep_larger(largest, rounded);
  }
  return largest;
}

/// A warp for each row.
template <int N, bool shifted>
__global__ void __launch_bounds__(block_threads)
    rms_norm_forward_kernel(Mat<bf16> out, float* rstd, Mat<const bf16> x, float eps, float* maximum,
                            const float* shift) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size;
  const std::uint32_t largest = row < x.rows ? norm_row<N, shifted>(row, out, rstd, x, eps, shift) : 0;
  if (maximum) raise_by_block(maximum, largest);
}

/// A warp for each row, N vectors of 8 elements for each lane. d_x is read early, so that its latency overlaps the
/// reduction.
template <int N>
__global__ void __launch_bounds__(block_threads)
    rms_norm_backward_kernel(Mat<bf16> d_x, Mat<const bf16> out, const float* rstd, Mat<const bf16> d_out, bool add) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= out.rows) return;
  Vector<bf16, 8> y[N], d_y[N], d[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col >= out.cols) continue;
    y[i] = load_vector<8>(out.row(row) + col);
    d_y[i] = load_vector<8>(d_out.row(row) + col);
    if (add) d[i] = load_vector<8>(d_x.row(row) + col);
  }
  const float r = rstd[row];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += dot(to_floats(y[i]), to_floats(d_y[i]));
  const float mean = warp_sum(sum) / out.cols;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    const Vector<float, 8> value = to_floats(y[i]), gradient = to_floats(d_y[i]);
    Vector<float, 8> total = to_floats(d[i]);
#pragma unroll
    for (int k = 0; k < 8; ++k) total.v[k] += r * (gradient.v[k] - value.v[k] * mean);
    if (col < out.cols) store_rounded(d_x.row(row) + col, total);
  }
}

}  // namespace

template <class T>
void rms_norm_forward(Stream stream, Mat<T> out, Vec<acc_t<T>> rstd, Mat<const T> x, double eps, acc_t<T>* maximum,
                      Vec<const std::type_identity_t<acc_t<T>>> shift) {
  require_vectors("rms_norm_forward", out);
  require_vectors("rms_norm_forward", x);
  require_vectors("rms_norm_forward", Mat<const float>(shift.data(), 1, static_cast<int>(shift.size())));
  if (x.rows == 0) return;
  for_vectors_per_lane("rms_norm_forward", x.cols, [&](auto n) {
    const auto kernel = shift.empty() ? rms_norm_forward_kernel<n(), false> : rms_norm_forward_kernel<n(), true>;
    launch("rms_norm_forward", stream, kernel, row_blocks(x.rows), block_threads, 0, out, rstd.data(), x,
           static_cast<float>(eps), maximum, shift.data());
  });
}

template <class T>
void rms_norm_backward(Stream stream, Mat<T> d_x, Mat<const T> out, Vec<const acc_t<T>> rstd, Mat<const T> d_out,
                       Output output) {
  require_vectors("rms_norm_backward", d_x);
  require_vectors("rms_norm_backward", out);
  require_vectors("rms_norm_backward", d_out);
  if (out.rows == 0) return;
  for_vectors_per_lane("rms_norm_backward", out.cols, [&](auto n) {
    launch("rms_norm_backward", stream, rms_norm_backward_kernel<n()>, row_blocks(out.rows), block_threads, 0, d_x, out,
           rstd.data(), d_out, output == Output::accumulate);
  });
}

template void rms_norm_forward(Stream, Mat<bf16>, Vec<float>, Mat<const bf16>, double, float*, Vec<const float>);
template void rms_norm_backward(Stream, Mat<bf16>, Mat<const bf16>, Vec<const float>, Mat<const bf16>, Output);

}  // namespace nanorun::kernels::cuda
