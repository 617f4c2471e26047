#include "kernels/xsa.hpp"

#include <bit>

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// D / 8 neighbouring lanes share a head of a token, each with 8 columns.
struct Heads {
  int tokens, heads, lanes;
};

/// This thread's place in the heads of all tokens; its row may lie beyond the last.
struct Place {
  int row, head, col;

  __device__ Place(const Heads& shape, std::size_t thread) {
    const std::size_t i = thread / shape.lanes;
    row = static_cast<int>(i / shape.heads);
    head = static_cast<int>(i % shape.heads);
    col = 8 * (head * shape.lanes + static_cast<int>(thread % shape.lanes));
  }
};

/// Sum of a b over a head; all lanes of a warp call it.
__device__ float head_dot(const Vector<float, 8>& a, const Vector<float, 8>& b, const Heads& shape) {
  return group_sum(dot(a, b), shape.lanes);
}

constexpr float smallest_norm = 1e-8f;

__global__ void __launch_bounds__(block_threads)
    xsa_kernel(Heads shape, Mat<bf16> out, Mat<const bf16> y, Mat<const bf16> v, Mat<const float> alpha) {
  Place at(shape, static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x);
  const bool inside = at.row < shape.tokens;  // lanes outside take part in the sums
  if (!inside) at.row = 0;
  Vector<float, 8> from = load_floats<8>(y.row(at.row) + at.col);
  const Vector<float, 8> value = load_floats<8>(v.row(at.row) + at.col);
  const float norm = fmaxf(head_dot(value, value, shape), smallest_norm);
  const float taken = tanhf(alpha.row(at.row)[at.head]) * head_dot(from, value, shape) / norm;
  if (!inside) return;
#pragma unroll
  for (int k = 0; k < 8; ++k) from.v[k] -= taken * value.v[k];
  store_rounded(out.row(at.row) + at.col, from);
}

/// Shared memory: the block's sum of d_alpha for each head, where the rows of d_alpha coincide.
__global__ void __launch_bounds__(block_threads)
    xsa_backward_kernel(Heads shape, Mat<bf16> d_y, Mat<bf16> d_v, Mat<float> d_alpha, Mat<const bf16> d_out,
                        Mat<const bf16> y, Mat<const bf16> v, Mat<const float> alpha) {
  extern __shared__ float alpha_sums[];
  const bool sums = d_alpha.ld == 0;
  if (sums) {
    for (int h = threadIdx.x; h < shape.heads; h += block_threads) alpha_sums[h] = 0;
    __syncthreads();
  }
  const std::size_t count = static_cast<std::size_t>(shape.tokens) * shape.heads * shape.lanes;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * block_threads;
  // All threads of a block make the same number of turns: lanes outside take part in the sums.
  for (std::size_t first = static_cast<std::size_t>(blockIdx.x) * block_threads; first < count; first += stride) {
    Place at(shape, first + threadIdx.x);
    const bool inside = at.row < shape.tokens;
    if (!inside) at.row = 0;
    Vector<float, 8> g = load_floats<8>(d_out.row(at.row) + at.col);
    const Vector<float, 8> from = load_floats<8>(y.row(at.row) + at.col),
                           value = load_floats<8>(v.row(at.row) + at.col);
    const float own = head_dot(value, value, shape), norm = fmaxf(own, smallest_norm);
    const float part = head_dot(from, value, shape) / norm, by_value = head_dot(g, value, shape);
    if (!inside) continue;
    const float c = tanhf(alpha.row(at.row)[at.head]);
    const float by_part = -c * by_value / norm, by_norm = own < smallest_norm ? 0 : 2 * part;
    if (threadIdx.x % shape.lanes == 0) {
      const float d = -(1 - c * c) * part * by_value;
      if (sums) {
        atomicAdd(alpha_sums + at.head, d);
      } else {
        d_alpha.row(at.row)[at.head] += d;
      }
    }
    Vector<float, 8> to_v = load_floats<8>(d_v.row(at.row) + at.col);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      to_v.v[k] += by_part * (from.v[k] - by_norm * value.v[k]) - c * part * g.v[k];
      g.v[k] += by_part * value.v[k];
    }
    store_rounded(d_v.row(at.row) + at.col, to_v);
    store_rounded(d_y.row(at.row) + at.col, g);
  }
  if (!sums) return;
  __syncthreads();
  for (int h = threadIdx.x; h < shape.heads; h += block_threads) atomicAdd(d_alpha.data + h, alpha_sums[h]);
}

/// Throws std::invalid_argument unless the columns divide into heads of D = 8, 16 ... 256.
Heads heads_of(const char* op, const Mat<const bf16>& y, int heads) {
  const unsigned lanes = y.cols / heads / 8;
  if (lanes * heads * 8 != static_cast<unsigned>(y.cols) || !std::has_single_bit(lanes) || lanes > warp_size) {
    throw std::invalid_argument(std::string(op) + ": the head width must be a power of two from 8 to 256");
  }
  return {y.rows, heads, static_cast<int>(lanes)};
}

std::size_t threads_of(const Heads& shape) {
  return static_cast<std::size_t>(shape.tokens) * shape.heads * shape.lanes;
}

}  // namespace

template <class T>
void xsa_forward(Stream stream, Mat<T> out, Mat<const T> y, Mat<const T> v, Mat<const acc_t<T>> alpha, int heads) {
  constexpr const char* op = "xsa_forward";
  const Heads shape = heads_of(op, y, heads);
  require_vectors(op, out);
  require_vectors(op, y);
  require_vectors(op, v);
  if (y.rows == 0) return;
  const int blocks = static_cast<int>(ceil_div(threads_of(shape), block_threads));
  xsa_kernel<<<blocks, block_threads, 0, cuda_stream(stream)>>>(shape, out, y, v, alpha);
  check_launch(op);
}

template <class T>
void xsa_backward(Stream stream, Mat<T> d_y, Mat<T> d_v, Mat<acc_t<T>> d_alpha, Mat<const T> d_out, Mat<const T> y,
                  Mat<const T> v, Mat<const acc_t<T>> alpha, int heads) {
  constexpr const char* op = "xsa_backward";
  const Heads shape = heads_of(op, y, heads);
  require_vectors(op, d_y);
  require_vectors(op, d_v);
  require_vectors(op, d_out);
  require_vectors(op, y);
  require_vectors(op, v);
  if (y.rows == 0) return;
  xsa_backward_kernel<<<blocks_for(threads_of(shape)), block_threads, heads * sizeof(float), cuda_stream(stream)>>>(
      shape, d_y, d_v, d_alpha, d_out, y, v, alpha);
  check_launch(op);
}

template void xsa_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const float>, int);
template void xsa_backward(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>,
                           Mat<const float>, int);

}  // namespace nanorun::kernels::cuda
