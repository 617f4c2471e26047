#include "kernels/key_offset.hpp"

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Threads of a block, and rows that each of them moves at once: all rows of a tile are read before any is written.
constexpr int threads = 1024, rows_of_thread = 4, tile = threads * rows_of_thread;

/// First column of the block's vector of 8: of the quarters of all heads, each second one stands still.
__device__ int still_column(int quarter) {
  const int i = 8 * blockIdx.x;
  return (2 * (i / quarter) + 1) * quarter + i % quarter;
}

/// A block for each vector of columns, which shifts them tile by tile from the last row up.
__global__ void __launch_bounds__(threads) key_offset_kernel(Mat<bf16> k, int quarter) {
  k.data += still_column(quarter);
  for (int end = k.rows; end > 1; end -= tile) {
    Vector<bf16, 8> rows[rows_of_thread];
#pragma unroll
    for (int i = 0; i < rows_of_thread; ++i) {
      const int t = end - 1 - static_cast<int>(threadIdx.x) - i * threads;
      if (t > 0) rows[i] = load_vector<8>(k.row(t - 1));
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < rows_of_thread; ++i) {
      const int t = end - 1 - static_cast<int>(threadIdx.x) - i * threads;
      if (t > 0) store_vector(k.row(t), rows[i]);
    }
  }
}

/// Gradient of row t before the shift, at least two rows.
__device__ Vector<bf16, 8> gradient(const Mat<bf16>& d_k, int t) {
  if (t == d_k.rows - 1) return {};
  const Vector<bf16, 8> next = load_vector<8>(d_k.row(t + 1));
  if (t > 0) return next;
  Vector<float, 8> sum = to_floats(next);
  const Vector<float, 8> own = load_floats<8>(d_k.row(0));
#pragma unroll
  for (int j = 0; j < 8; ++j) sum.v[j] += own.v[j];
  return round_to_bf16(sum);
}

/// The same from the first row down.
__global__ void __launch_bounds__(threads) key_offset_backward_kernel(Mat<bf16> d_k, int quarter) {
  d_k.data += still_column(quarter);
  for (int begin = 0; begin < d_k.rows; begin += tile) {
    Vector<bf16, 8> rows[rows_of_thread];
#pragma unroll
    for (int i = 0; i < rows_of_thread; ++i) {
      const int t = begin + static_cast<int>(threadIdx.x) + i * threads;
      if (t < d_k.rows) rows[i] = gradient(d_k, t);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < rows_of_thread; ++i) {
      const int t = begin + static_cast<int>(threadIdx.x) + i * threads;
      if (t < d_k.rows) store_vector(d_k.row(t), rows[i]);
    }
  }
}

/// Columns in a quarter of a head.
int quarter_of(const char* op, const Mat<bf16>& k, int heads) {
  require_vectors(op, k);
  if (k.cols % (32 * heads) != 0) {
    throw std::invalid_argument(std::string(op) + ": the head width must be a multiple of 32");
  }
  return k.cols / heads / 4;
}

}  // namespace

template <class T>
void key_offset_forward(Stream stream, Mat<T> k, int heads) {
  const int quarter = quarter_of("key_offset_forward", k, heads);
  if (k.rows < 2) return;
  key_offset_kernel<<<k.cols / 16, threads, 0, cuda_stream(stream)>>>(k, quarter);
  check_launch("key_offset_forward");
}

template <class T>
void key_offset_backward(Stream stream, Mat<T> d_k, int heads) {
  const int quarter = quarter_of("key_offset_backward", d_k, heads);
  if (d_k.rows < 2) return;
  key_offset_backward_kernel<<<d_k.cols / 16, threads, 0, cuda_stream(stream)>>>(d_k, quarter);
  check_launch("key_offset_backward");
}

template void key_offset_forward(Stream, Mat<bf16>, int);
template void key_offset_backward(Stream, Mat<bf16>, int);

}  // namespace nanorun::kernels::cuda
