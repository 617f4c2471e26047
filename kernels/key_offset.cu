#include "kernels/key_offset.hpp"

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A thread's vector of 8 columns, with a grid-stride loop. Of the quarters of all heads, each second one stands still.
struct Place {
  int row, col;
  bool still;

  __device__ Place(std::size_t i, int vectors, int quarter)
      : row(static_cast<int>(i / vectors)), col(8 * static_cast<int>(i % vectors)), still(col / quarter % 2 == 1) {}
};

/// body(place) for each vector of a matrix.
template <class Body>
__device__ void for_vectors(const Mat<const bf16>& x, int quarter, const Body& body) {
  const int vectors = x.cols / 8;
  const std::size_t count = static_cast<std::size_t>(x.rows) * vectors;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * block_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x; i < count; i += stride) {
    body(Place(i, vectors, quarter));
  }
}

__global__ void __launch_bounds__(block_threads) key_offset_kernel(Mat<bf16> out, Mat<const bf16> k, int quarter) {
  begin_after_previous();
  for_vectors(k, quarter, [&](const Place& at) {
    const int from = at.still && at.row > 0 ? at.row - 1 : at.row;
    store_vector(out.row(at.row) + at.col, load_vector<8>(k.row(from) + at.col));
  });
}

__global__ void __launch_bounds__(block_threads)
    key_offset_backward_kernel(Mat<bf16> d_k, Mat<const bf16> d_out, int quarter) {
  begin_after_previous();
  for_vectors(d_out, quarter, [&](const Place& at) {
    Vector<float, 8> sum;
    if (!at.still || at.row == 0) sum = load_floats<8>(d_out.row(at.row) + at.col);
    if (at.still && at.row + 1 < d_out.rows) {
      const Vector<float, 8> next = load_floats<8>(d_out.row(at.row + 1) + at.col);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum.v[j] += next.v[j];
    }
    store_rounded(d_k.row(at.row) + at.col, sum);
  });
}

/// Columns in a quarter of a head.
int quarter_of(const char* op, const Mat<bf16>& to, const Mat<const bf16>& from, int heads) {
  require_vectors(op, to);
  require_vectors(op, from);
  if (to.cols % (32 * heads) != 0) {
    throw std::invalid_argument(std::string(op) + ": the head width must be a multiple of 32");
  }
  return to.cols / heads / 4;
}

}  // namespace

template <class T>
void key_offset_forward(Stream stream, Mat<T> out, Mat<const T> k, int heads) {
  const int quarter = quarter_of("key_offset_forward", out, k, heads);
  if (k.rows == 0) return;
  launch("key_offset_forward", stream, key_offset_kernel, blocks_for(k.size() / 8), block_threads, 0, out, k, quarter);
}

template <class T>
void key_offset_backward(Stream stream, Mat<T> d_k, Mat<const T> d_out, int heads) {
  const int quarter = quarter_of("key_offset_backward", d_k, d_out, heads);
  if (d_k.rows == 0) return;
  launch("key_offset_backward", stream, key_offset_backward_kernel, blocks_for(d_k.size() / 8), block_threads, 0, d_k,
         d_out, quarter);
}

template void key_offset_forward(Stream, Mat<bf16>, Mat<const bf16>, int);
template void key_offset_backward(Stream, Mat<bf16>, Mat<const bf16>, int);

}  // namespace nanorun::kernels::cuda
