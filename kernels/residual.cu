#include "kernels/residual.hpp"

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// One warp a row, N vectors of 8 elements a lane. The norm is taken of the sums before they are rounded to x.
template <int N, bool has_skip>
__global__ void __launch_bounds__(block_threads)
    residual_mix_norm_kernel(Mat<bf16> x, Mat<bf16> n, float* rstd, ResidualInputs<bf16> in, float eps) {
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= x.rows) return;
  const float a0 = in.a[0], a1 = in.a[1], s = has_skip ? in.s[0] : 0;
  Float8 mixed[N];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col >= x.cols) continue;
    const Float8 x_prev = unpack(load8(in.x_prev.row(row) + col)), x0 = unpack(load8(in.x0.row(row) + col));
    Float8 skip;
    if (has_skip) skip = unpack(load8(in.skip.row(row) + col));
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
    store8(x.row(row) + col, pack(mixed[i]));
#pragma unroll
    for (int k = 0; k < 8; ++k) mixed[i].v[k] *= r;
    store8(n.row(row) + col, pack(mixed[i]));
  }
}

/// One thread a vector of 8 elements, striding. The scalars' gradients are summed over the block, then added in one
/// atomic each.
template <bool has_skip>
__global__ void __launch_bounds__(block_threads)
    residual_mix_backward_kernel(ResidualGradients<bf16> d, ResidualInputs<bf16> in) {
  const unsigned vectors = d.d_x.cols / 8, total = vectors * d.d_x.rows;
  const float a0 = in.a[0], a1 = in.a[1], s = has_skip ? in.s[0] : 0;
  float by_x_prev = 0, by_x0 = 0, by_skip = 0;
  for (unsigned i = blockIdx.x * block_threads + threadIdx.x; i < total; i += gridDim.x * block_threads) {
    const int row = i / vectors, col = i % vectors * 8;
    Float8 d_x = unpack(load8(d.d_x.row(row) + col)), d_x0 = unpack(load8(d.d_x0.row(row) + col));
    by_x_prev += dot(d_x, unpack(load8(in.x_prev.row(row) + col)));
    by_x0 += dot(d_x, unpack(load8(in.x0.row(row) + col)));
    if (has_skip) by_skip += dot(d_x, unpack(load8(in.skip.row(row) + col)));
    Float8 d_skip;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      d_x0.v[k] += a1 * d_x.v[k];
      d_x.v[k] *= a0;
      d_skip.v[k] = s * d_x.v[k];
    }
    store8(d.d_x0.row(row) + col, pack(d_x0));
    store8(d.d_x.row(row) + col, pack(d_x));
    if (has_skip) store8(d.d_skip.row(row) + col, pack(d_skip));
  }
  block_add(d.d_a, by_x_prev + s * by_skip);
  block_add(d.d_a + 1, by_x0);
  if (has_skip) block_add(d.d_s, a0 * by_skip);
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
void residual_mix_backward(Stream stream, const ResidualGradients<T>& d, const ResidualInputs<T>& in) {
  constexpr const char* op = "residual_mix_backward";
  require_vectors(op, d.d_x);
  require_vectors(op, d.d_x0);
  require_vectors(op, d.d_skip);
  require_inputs(op, in);
  if (d.d_x.rows == 0) return;
  const auto kernel = in.skip ? residual_mix_backward_kernel<true> : residual_mix_backward_kernel<false>;
  kernel<<<blocks_for(d.d_x.size() / 8), block_threads, 0, cuda_stream(stream)>>>(d, in);
  check_launch(op);
}

template void residual_mix_norm_forward(Stream, Mat<bf16>, Mat<bf16>, Vec<float>, const ResidualInputs<bf16>&, double);
template void residual_mix_backward(Stream, const ResidualGradients<bf16>&, const ResidualInputs<bf16>&);

}  // namespace nanorun::kernels::cuda
