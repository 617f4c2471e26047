#include "kernels/muon.hpp"

#include <cassert>
#include <utility>

#include "kernels/muon_symmetric_gemm.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Thread blocks that share the norm of a matrix.
constexpr int norm_blocks = 32;

/// Side of the tiles in which matrices are converted, one for each thread block.
constexpr int tile_side = 64;
constexpr int max_batches = 32;

/// Kernel argument: all matrices of a call.
struct Batches {
  MatrixBatch<float> batch[max_batches];
};

/// Matrix number `index` over all batches.
struct BatchMatrix {
  float* data;
  int rows, cols;

  __device__ BatchMatrix(const Batches& batches, int index) {
    const MatrixBatch<float>* batch = batches.batch;
    for (; index >= batch->count; ++batch) index -= batch->count;
    data = batch->data + index * batch->matrix_size();
    rows = batch->rows, cols = batch->cols;
  }
  __device__ std::size_t size() const { return static_cast<std::size_t>(rows) * cols; }
  __device__ bool tall() const { return rows > cols; }
};

/// The batches as the iteration sees them: `count` matrices [rows, cols], rows <= cols.
struct Shape {
  int count = 0, rows = 0, cols = 0;
};

Shape shape_of(std::span<const MatrixBatch<float>> batches) {
  Shape shape;
  for (const MatrixBatch<float>& batch : batches) {
    const int rows = std::min(batch.rows, batch.cols), cols = std::max(batch.rows, batch.cols);
    if (rows % 8 != 0 || cols % 8 != 0) throw std::invalid_argument("newton_schulz: sides of 8 n elements");
    if (shape.cols > 0 && (rows != shape.rows || cols != shape.cols)) {
      throw std::invalid_argument("newton_schulz: batches of different shapes");
    }
    shape = {shape.count + batch.count, rows, cols};
  }
  return shape;
}

/// The workspace, for all matrices.
struct Buffers {
  bf16 *x, *next, *A, *B;
  float* partial;  ///< [count, norm_blocks] sums of squares
};

Buffers allocate(WorkspaceAllocator& allocator, const Shape& shape) {
  const std::size_t n = shape.rows, count = shape.count;
  Buffers buffers;
  buffers.x = allocator.take<bf16>(count * n * shape.cols);
  buffers.next = allocator.take<bf16>(count * n * shape.cols);
  buffers.A = allocator.take<bf16>(count * n * n);
  buffers.B = allocator.take<bf16>(count * n * n);
  buffers.partial = allocator.take<float>(count * norm_blocks);
  return buffers;
}

/// Block (i, j) sums the squares of part i of matrix j.
__global__ void __launch_bounds__(block_threads)
    partial_squares(float* partial, const __grid_constant__ Batches batches) {
  __shared__ float sums[block_warps];
  const BatchMatrix x(batches, blockIdx.y);
  float sum = 0;
  for (std::size_t i = blockIdx.x * block_threads + threadIdx.x; i < x.size() / 8; i += norm_blocks * block_threads) {
    const Vector<float, 8> v = load_vector<8>(x.data + 8 * i);
    sum += dot(v, v);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % warp_size == 0) sums[threadIdx.x / warp_size] = sum;
  __syncthreads();
  if (threadIdx.x >= warp_size) return;
  sum = warp_sum(threadIdx.x < block_warps ? sums[threadIdx.x] : 0);
  if (threadIdx.x == 0) partial[blockIdx.y * norm_blocks + blockIdx.x] = sum;
}

__device__ void store_values(bf16* out, const Vector<bf16, 8>& x) { store_vector(out, x); }
__device__ void store_values(float* out, const Vector<bf16, 8>& x) { store_vector(out, to_floats(x)); }

/// The block's tile of out = factor x, rounded to bf16, or of its transpose; x [rows, cols]. Global memory is read and
/// written by eight threads per row of 64 elements.
template <class To, class From>
__device__ void convert_tile(To* out, const From* x, int rows, int cols, bool transpose, float factor) {
  __shared__ std::uint32_t tile[tile_side][tile_side / 2 + 1];  // pairs; padded against bank conflicts
  constexpr int row_step = block_threads / 8;
  const int across = ceil_div(cols, tile_side), vector = threadIdx.x % 8;
  const int first_row = blockIdx.x / across * tile_side, first_col = blockIdx.x % across * tile_side;
  for (int i = threadIdx.x / 8; i < tile_side; i += row_step) {
    const int row = first_row + i, col = first_col + 8 * vector;
    if (row >= rows || col >= cols) continue;
    const std::size_t at = static_cast<std::size_t>(row) * cols + col;
    Vector<float, 8> v = load_floats<8>(x + at);
#pragma unroll
    for (float& element : v.v) element *= factor;
    const Vector<bf16, 8> rounded = round_to_bf16(v);
    if (transpose) {
#pragma unroll
      for (int k = 0; k < 4; ++k) tile[i][4 * vector + k] = rounded.pair[k];
    } else {
      store_values(out + at, rounded);
    }
  }
  if (!transpose) return;
  __syncthreads();
  for (int i = threadIdx.x / 8; i < tile_side; i += row_step) {
    const int row = first_row + 8 * vector, col = first_col + i;
    if (row >= rows || col >= cols) continue;
    const unsigned halves = i % 2 == 0 ? 0x5410 : 0x7632;  // which element of each pair
    Vector<bf16, 8> column;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      column.pair[k] = __byte_perm(tile[8 * vector + 2 * k][i / 2], tile[8 * vector + 2 * k + 1][i / 2], halves);
    }
    store_values(out + static_cast<std::size_t>(col) * rows + row, column);
  }
}

/// out = x / (norm_factor |x|_F + eps) for matrix blockIdx.y, transposed if it is tall.
__global__ void __launch_bounds__(block_threads)
    normalise(bf16* out, const __grid_constant__ Batches batches, const float* partial, float norm_factor, float eps) {
  static_assert(norm_blocks == warp_size);
  const BatchMatrix x(batches, blockIdx.y);
  const float squares = warp_sum(partial[blockIdx.y * norm_blocks + threadIdx.x % warp_size]);
  convert_tile(out + blockIdx.y * x.size(), x.data, x.rows, x.cols, x.tall(), 1 / (norm_factor * sqrtf(squares) + eps));
}

/// The way back: x [rows, cols] are the wide matrices.
__global__ void __launch_bounds__(block_threads)
    widen(const __grid_constant__ Batches batches, const bf16* x, int rows, int cols) {
  const BatchMatrix out(batches, blockIdx.y);
  convert_tile(out.data, x + blockIdx.y * out.size(), rows, cols, out.tall(), 1);
}

/// One step next = a x + (b A + c A A) x with A = x xᵀ.
void polar_step(Stream stream, Mat<bf16> next, Mat<const bf16> x, Mat<bf16> A, Mat<bf16> B, int count,
                const PolarIteration::Step& step) {
  const auto a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
  symmetric_gemm(stream, {.count = count}, x, {}, A);
  symmetric_gemm(stream, {.alpha = c, .beta = b, .count = count}, A, A, B);
  gemm<bf16, bf16, bf16>(stream, {.beta = a, .count = count}, Op::none, B, Op::none, x, x, next);
}

/// The iteration on all matrices.
void orthogonalise(Stream stream, std::span<const MatrixBatch<float>> batches, const PolarIteration& iteration,
                   Workspace workspace) {
  assert(workspace.size() >= newton_schulz_workspace<float>(batches));
  const Shape shape = shape_of(batches);
  if (shape.count == 0) return;
  if (batches.size() > max_batches) throw std::invalid_argument("newton_schulz: too many batches");
  Batches argument;
  std::ranges::copy(batches, argument.batch);
  WorkspaceAllocator allocator(workspace);
  const Buffers buffers = allocate(allocator, shape);
  const auto tiles = [](int size) { return ceil_div(size, tile_side); };
  const dim3 grid(tiles(shape.rows) * tiles(shape.cols), shape.count);
  const cudaStream_t s = cuda_stream(stream);
  partial_squares<<<{norm_blocks, grid.y}, block_threads, 0, s>>>(buffers.partial, argument);
  normalise<<<grid, block_threads, 0, s>>>(buffers.x, argument, buffers.partial,
                                           static_cast<float>(iteration.norm_factor),
                                           static_cast<float>(iteration.eps));
  const int n = shape.rows;
  Mat<bf16> from(buffers.x, n, shape.cols), to(buffers.next, n, shape.cols);
  for (const PolarIteration::Step& step : iteration.steps) {
    polar_step(stream, to, from, {buffers.A, n, n}, {buffers.B, n, n}, shape.count, step);
    std::swap(from, to);
  }
  widen<<<grid, block_threads, 0, s>>>(argument, from.data, n, shape.cols);
  check_launch("newton_schulz");
}

}  // namespace

template <class T>
std::size_t newton_schulz_workspace(std::span<const MatrixBatch<T>> batches) {
  WorkspaceAllocator allocator({});
  allocate(allocator, shape_of(batches));
  return allocator.used();
}

template <class T>
void newton_schulz(Stream stream, std::span<const MatrixBatch<T>> batches, Workspace workspace) {
  orthogonalise(stream, batches, newton_schulz_iteration, workspace);
}

template <class T>
void polar_express(Stream stream, std::span<const MatrixBatch<T>> batches, Workspace workspace) {
  orthogonalise(stream, batches, polar_express_iteration, workspace);
}

template std::size_t newton_schulz_workspace(std::span<const MatrixBatch<float>>);
template void newton_schulz(Stream, std::span<const MatrixBatch<float>>, Workspace);
template void polar_express(Stream, std::span<const MatrixBatch<float>>, Workspace);

}  // namespace nanorun::kernels::cuda
