#include "kernels/muon.hpp"

#include <cassert>
#include <utility>

#include "kernels/cublas.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
constexpr int iterations = 5;
/// Blocks that share the norm of a matrix.
constexpr int norm_blocks = 32;

/// Pieces of the workspace, each for the whole batch.
struct Buffers {
  bf16 *x, *next, *A, *B;
  float* partial;  ///< [count, norm_blocks] sums of squares
};

Buffers cut(WorkspaceCutter& cutter, const MatrixBatch& shape) {
  const std::size_t n = std::min(shape.rows, shape.cols), count = shape.count;
  const std::size_t size = count * shape.rows * shape.cols;
  Buffers buffers;
  buffers.x = cutter.take<bf16>(size);
  buffers.next = cutter.take<bf16>(size);
  buffers.A = cutter.take<bf16>(count * n * n);
  buffers.B = cutter.take<bf16>(count * n * n);
  buffers.partial = cutter.take<float>(count * norm_blocks);
  return buffers;
}

/// Block (i, j) sums the squares of the i-th part of matrix j of `size` elements.
__global__ void __launch_bounds__(block_threads) partial_squares(float* partial, const float* x, std::size_t size) {
  __shared__ float sums[block_warps];
  const float* const matrix = x + blockIdx.y * size;
  float sum = 0;
  for (std::size_t i = blockIdx.x * block_threads + threadIdx.x; i < size / 8; i += norm_blocks * block_threads) {
    const Float8 v = load8(matrix + 8 * i);
    sum += dot(v, v);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % warp_size == 0) sums[threadIdx.x / warp_size] = sum;
  __syncthreads();
  if (threadIdx.x >= warp_size) return;
  sum = warp_sum(threadIdx.x < block_warps ? sums[threadIdx.x] : 0);
  if (threadIdx.x == 0) partial[blockIdx.y * norm_blocks + blockIdx.x] = sum;
}

/// out = x / (|x|_F + 1e-7) for matrix blockIdx.y
__global__ void __launch_bounds__(block_threads)
    normalise(bf16* out, const float* x, const float* partial, std::size_t size) {
  static_assert(norm_blocks == warp_size);
  const float squares = warp_sum(partial[blockIdx.y * norm_blocks + threadIdx.x % warp_size]);
  const float factor = 1 / (sqrtf(squares) + 1e-7f);
  const std::size_t first = blockIdx.y * size;
  for (std::size_t i = blockIdx.x * block_threads + threadIdx.x; i < size / 8; i += norm_blocks * block_threads) {
    Float8 v = load8(x + first + 8 * i);
#pragma unroll
    for (float& element : v.v) element *= factor;
    store8(out + first + 8 * i, pack(v));
  }
}

__global__ void __launch_bounds__(block_threads) widen(float* out, const bf16* x, std::size_t vectors) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * block_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x; i < vectors; i += stride) {
    const Float8 v = unpack(load8(x + 8 * i));
    auto* const to = reinterpret_cast<float4*>(out + 8 * i);
    to[0] = {v.v[0], v.v[1], v.v[2], v.v[3]};
    to[1] = {v.v[4], v.v[5], v.v[6], v.v[7]};
  }
}

/// One step next = a x + (b A + c A A) x with A = x xᵀ. Tall matrices multiply from the right with A = xᵀ x, which is
/// the same step on the transposed matrix.
void newton_schulz_step(Stream stream, Mat<bf16> next, Mat<const bf16> x, Mat<bf16> A, Mat<bf16> B, int count) {
  using In = Mat<const bf16>;
  const auto product = [&](float alpha, float beta, Op op_l, In l, Op op_r, In r, In addend, Mat<bf16> out) {
    gemm<bf16, bf16, bf16>(stream, {.alpha = alpha, .beta = beta, .count = count}, op_l, l, op_r, r, addend, out);
  };
  const bool tall = x.rows > x.cols;
  product(1, 0, tall ? Op::transpose : Op::none, x, tall ? Op::none : Op::transpose, x, A, A);
  product(c, b, Op::none, A, Op::transpose, A, A, B);  // A is symmetric
  if (tall) {
    product(1, a, Op::none, x, Op::transpose, B, x, next);  // so is B
  } else {
    product(1, a, Op::none, B, Op::none, x, x, next);
  }
}

}  // namespace

template <class T>
std::size_t newton_schulz_workspace(const MatrixBatch& shape) {
  WorkspaceCutter cutter({});
  cut(cutter, shape);
  return cutter.used();
}

template <class T>
void newton_schulz(Stream stream, Vec<T> x, const MatrixBatch& shape, Workspace workspace) {
  const std::size_t size = static_cast<std::size_t>(shape.rows) * shape.cols;
  assert(x.size() == shape.count * size && workspace.size() >= newton_schulz_workspace<T>(shape));
  if (x.empty()) return;
  if (shape.rows % 8 != 0 || shape.cols % 8 != 0) throw std::invalid_argument("newton_schulz: sides of 8 n elements");
  WorkspaceCutter cutter(workspace);
  const Buffers buffers = cut(cutter, shape);
  const dim3 grid(norm_blocks, shape.count);
  const cudaStream_t s = cuda_stream(stream);
  partial_squares<<<grid, block_threads, 0, s>>>(buffers.partial, x.data(), size);
  normalise<<<grid, block_threads, 0, s>>>(buffers.x, x.data(), buffers.partial, size);
  const int n = std::min(shape.rows, shape.cols);
  Mat<bf16> from(buffers.x, shape.rows, shape.cols), to(buffers.next, shape.rows, shape.cols);
  for (int k = 0; k < iterations; ++k, std::swap(from, to)) {
    newton_schulz_step(stream, to, from, {buffers.A, n, n}, {buffers.B, n, n}, shape.count);
  }
  widen<<<blocks_for(x.size() / 8), block_threads, 0, s>>>(x.data(), from.data, x.size() / 8);
  check_launch("newton_schulz");
}

template std::size_t newton_schulz_workspace<float>(const MatrixBatch&);
template void newton_schulz(Stream, Vec<float>, const MatrixBatch&, Workspace);

}  // namespace nanorun::kernels::cuda
