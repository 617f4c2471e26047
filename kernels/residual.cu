#include "kernels/residual.hpp"

#include <cassert>

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A warp for each row, N vectors of 8 elements for each lane. The norm reads the sums before they are rounded to x.
template <int N, bool has_skip>
__global__ void __launch_bounds__(block_threads)
    residual_mix_norm_kernel(Mat<bf16> x, Mat<bf16> n, float* rstd, ResidualInputs<bf16> in, float eps) {
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= x.rows) return;
  const float a0 = in.a[0], a1 = in.a[1], s = has_skip ? in.s[0] : 0;
  Vector<float, 8> mixed[N];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col >= x.cols) continue;
    const Vector<float, 8> x_prev = to_floats(load_vector<8>(in.x_prev.row(row) + col)),
                           x0 = to_floats(load_vector<8>(in.x0.row(row) + col));
    Vector<float, 8> skip;
    if (has_skip) skip = to_floats(load_vector<8>(in.skip.row(row) + col));
#pragma unroll
    for (int k = 0; k < 8; ++k) mixed[i].v[k] = a0 * (x_prev.v[k] + s * skip.v[k]) + a1 * x0.v[k];
    squares += dot(mixed[i], mixed[i]);
  }
  const float r = rsqrtf(warp_sum(squares) / x.cols + eps);
  if (lane == 0) rstd[row] = r;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col >= x.cols) continue;
    store_vector(x.row(row) + col, round_to_bf16(mixed[i]));
#pragma unroll
    for (int k = 0; k < 8; ++k) mixed[i].v[k] *= r;
    store_vector(n.row(row) + col, round_to_bf16(mixed[i]));
  }
}

/// Gradients of the learned scalars, before their factors.
struct ScalarSums {
  float by_x_prev = 0, by_x0 = 0, by_skip = 0;
};

/// As above, with a grid-stride loop over rows. A block sums the scalars' gradients, then adds each by one atomic.
template <int N, bool has_skip>
__global__ void __launch_bounds__(block_threads, N > 3 ? 1 : 2)
    residual_mix_norm_backward_kernel(ResidualGradients<bf16> d, NormGradient<bf16> norm, ResidualInputs<bf16> in) {
  const int lane = threadIdx.x % warp_size, cols = d.d_x.cols;
  const float a0 = in.a[0], a1 = in.a[1], s = has_skip ? in.s[0] : 0;
  const bool skip_is_x_prev = has_skip && in.skip.data == in.x_prev.data;
  ScalarSums sums;
  for (int row = blockIdx.x * block_warps + threadIdx.x / warp_size; row < d.d_x.rows; row += gridDim.x * block_warps) {
    Vector<bf16, 8> d_x[N], n[N], d_n[N], x_prev[N], x0[N], d_x0[N], skip[N], d_x_prev[N];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int col = 8 * (lane + warp_size * i);
      if (col >= cols) continue;
      n[i] = load_vector<8>(norm.n.row(row) + col);
      d_n[i] = load_vector<8>(norm.d_n.row(row) + col);
      d_x[i] = load_vector<8>(d.d_x.row(row) + col);
      x_prev[i] = load_vector<8>(in.x_prev.row(row) + col);
      x0[i] = load_vector<8>(in.x0.row(row) + col);
      d_x0[i] = load_vector<8>(d.d_x0.row(row) + col);
      if (has_skip) skip[i] = load_vector<8>(in.skip.row(row) + col);
      if (!has_skip && d.d_x_prev) d_x_prev[i] = load_vector<8>(d.d_x_prev.row(row) + col);
    }
    const float r = norm.rstd[row];
#pragma unroll
    for (int i = 0; i < N; ++i) sum += dot(to_floats(n[i]), to_floats(d_n[i]));
    const float mean = warp_sum(sum) / cols;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int col = 8 * (lane + warp_size * i);
      if (col >= cols) continue;
      Vector<float, 8> g = to_floats(d_x[i]), to_x0 = to_floats(d_x0[i]), to_skip;
      const Vector<float, 8> y = to_floats(n[i]), d_y = to_floats(d_n[i]), joins = to_floats(d_x_prev[i]);
#pragma unroll
      for (int k = 0; k < 8; ++k) g.v[k] += r * (d_y.v[k] - y.v[k] * mean);
      sums.by_x_prev += dot(g, to_floats(x_prev[i]));
      sums.by_x0 += dot(g, to_floats(x0[i]));
      if (has_skip) sums.by_skip += dot(g, to_floats(skip[i]));
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        to_x0.v[k] += a1 * g.v[k];
        g.v[k] *= a0;
        to_skip.v[k] = s * g.v[k];
        g.v[k] += joins.v[k] + (skip_is_x_prev ? to_skip.v[k] : 0);
      }
      store_vector(d.d_x0.row(row) + col, round_to_bf16(to_x0));
      store_vector(d.d_x.row(row) + col, round_to_bf16(g));
      if (has_skip && !skip_is_x_prev) store_vector(d.d_skip.row(row) + col, round_to_bf16(to_skip));
    }
  }
  block_add(d.d_a, sums.by_x_prev + s * sums.by_skip);
  block_add(d.d_a + 1, sums.by_x0);
  if (has_skip) block_add(d.d_s, a0 * sums.by_skip);
}

template <class T>
void require_inputs(const char* op, const ResidualInputs<T>& in) {
  require_vectors(op, in.x_prev);
  require_vectors(op, in.x0);
  require_vectors(op, in.skip);
}

}  // namespace

template <class T>
void residual_mix_norm_forward(Stream stream, Mat<T> x, Mat<T> n, Vec<acc_t<T>> rstd, const ResidualInputs<T>& in,
                               double eps) {
  constexpr const char* op = "residual_mix_norm_forward";
  require_vectors(op, x);
  require_vectors(op, n);
  require_inputs(op, in);
  if (x.rows == 0) return;
  for_vectors_per_lane(op, x.cols, [&](auto vectors) {
    const auto kernel =
        in.skip ? residual_mix_norm_kernel<vectors(), true> : residual_mix_norm_kernel<vectors(), false>;
    kernel<<<row_blocks(x.rows), block_threads, 0, cuda_stream(stream)>>>(x, n, rstd.data(), in,
                                                                          static_cast<float>(eps));
  });
  check_launch(op);
}

template <class T>
void residual_mix_norm_backward(Stream stream, const ResidualGradients<T>& d, const NormGradient<T>& norm,
                                const ResidualInputs<T>& in) {
  constexpr const char* op = "residual_mix_norm_backward";
  assert(!in.skip || !d.d_x_prev);
  require_vectors(op, d.d_x);
  require_vectors(op, d.d_x0);
  require_vectors(op, d.d_skip);
  require_vectors(op, d.d_x_prev);
  require_vectors(op, norm.n);
  require_vectors(op, norm.d_n);
  require_inputs(op, in);
  if (d.d_x.rows == 0) return;
  for_vectors_per_lane(op, d.d_x.cols, [&](auto vectors) {
    const auto kernel = in.skip ? residual_mix_norm_backward_kernel<vectors(), true>
                                : residual_mix_norm_backward_kernel<vectors(), false>;
    const std::size_t threads = static_cast<std::size_t>(d.d_x.rows) * warp_size;
    kernel<<<blocks_for(threads), block_threads, 0, cuda_stream(stream)>>>(d, norm, in);
  });
  check_launch(op);
}

template void residual_mix_norm_forward(Stream, Mat<bf16>, Mat<bf16>, Vec<float>, const ResidualInputs<bf16>&, double);
template void residual_mix_norm_backward(Stream, const ResidualGradients<bf16>&, const NormGradient<bf16>&,
                                         const ResidualInputs<bf16>&);

}  // namespace nanorun::kernels::cuda
