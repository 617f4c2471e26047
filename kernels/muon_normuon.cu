// NorMuon, see muon.hpp.

#include <cassert>

#include "kernels/muon.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Thread blocks that share the lines of a matrix.
constexpr int matrix_blocks = 96;
constexpr int line_threads = block_threads;
constexpr int line_warps = line_threads / warp_size;

/// Sums over lines, for |X|² and |X s|².
struct NormSums {
  double squares, scaled;
  __device__ NormSums& operator+=(const NormSums& other) {
    squares += other.squares;
    scaled += other.scaled;
    return *this;
  }
};

/// Factor s of a line with second moment Q; NaN stays NaN.
__device__ float line_factor(float second_moment) { return 1 / sqrtf(second_moment < 1e-10f ? 1e-10f : second_moment); }

/// Updates Q of a line from the sum of its squares; returns what the line adds.
__device__ NormSums update_line(float& second_moment, float squares, int length, float beta) {
  const float q = beta * second_moment + (1 - beta) * (squares / static_cast<float>(length));
  second_moment = q;
  const double s = line_factor(q);
  return {squares, squares * s * s};
}

/// What the thread block of number `rank` does of a matrix: it updates the Q of its rows, and later scales them.
struct Rows {
  Mat<float> x;
  float* second_moment;

  __device__ NormSums update(int rank, float beta) const {
    const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    NormSums sums{};
    for (int i = rank * line_warps + warp; i < x.rows; i += matrix_blocks * line_warps) {
      float squares = 0;
#pragma unroll 6
      for (int j = 4 * lane; j < x.cols; j += 4 * warp_size) {
        const Vector<float, 4> v = load_vector<4>(x.row(i) + j);
#pragma unroll
        for (const float element : v.v) squares += element * element;
      }
      squares = warp_sum(squares);
      if (lane == 0) sums += update_line(second_moment[i], squares, x.cols, beta);
    }
    return sums;
  }

  __device__ void scale(int rank, float factor) const {
    const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    for (int i = rank * line_warps + warp; i < x.rows; i += matrix_blocks * line_warps) {
      const float s = factor * line_factor(second_moment[i]);
#pragma unroll 6
      for (int j = 4 * lane; j < x.cols; j += 4 * warp_size) {
        Vector<float, 4> v = load_vector<4>(x.row(i) + j);
#pragma unroll
        for (float& element : v.v) element *= s;
        store_vector(x.row(i) + j, v);
      }
    }
  }
};

/// The same of columns, in groups of one for each lane.
struct Columns {
  Mat<float> x;
  float* second_moment;

  __device__ NormSums update(int rank, float beta) const {
    __shared__ float partial[line_warps][warp_size];
    const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    NormSums sums{};
    for (int first = rank * warp_size; first < x.cols; first += matrix_blocks * warp_size) {
      const int j = first + lane;
      float squares = 0;
#pragma unroll 8
      for (int i = warp; j < x.cols && i < x.rows; i += line_warps) squares += x.row(i)[j] * x.row(i)[j];
      partial[warp][lane] = squares;
      __syncthreads();
      if (warp == 0 && j < x.cols) {
        float column = 0;
        for (int w = 0; w < line_warps; ++w) column += partial[w][lane];
        sums += update_line(second_moment[j], column, x.rows, beta);
      }
      __syncthreads();
    }
    return sums;
  }

  __device__ void scale(int rank, float factor) const {
    const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    for (int j = rank * warp_size + lane; j < x.cols; j += matrix_blocks * warp_size) {
      const float s = factor * line_factor(second_moment[j]);
#pragma unroll 8
      for (int i = warp; i < x.rows; i += line_warps) x.row(i)[j] *= s;
    }
  }
};

/// Sum over the threads of the block, for every thread, in a fixed order.
__device__ NormSums block_sum(NormSums x) {
  __shared__ NormSums of_warps[line_warps];
  x = {warp_sum(x.squares), warp_sum(x.scaled)};
  if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = x;
  __syncthreads();
  NormSums sum{};
  for (const NormSums& of_warp : of_warps) sum += of_warp;
  return sum;
}

constexpr int max_batches = 32;

/// Kernel argument: matrices of several batches.
struct Batches {
  NormuonBatch<float> batch[max_batches];

  /// Calls body(Rows) or body(Columns) with matrix number `index` over all batches.
  template <class Body>
  __device__ void with_lines(int index, const Body& body) const {
    const NormuonBatch<float>* own = batch;
    for (; index >= own->x.count; ++own) index -= own->x.count;
    const Mat<float> x(own->x.data + index * own->x.matrix_size(), own->x.rows, own->x.cols);
    float* const second_moment = own->second_moment + static_cast<std::size_t>(index) * own->lines();
    if (x.rows >= x.cols) {
      body(Rows{x, second_moment});
    } else {
      body(Columns{x, second_moment});
    }
  }
};

/// Block (i, j) updates the second moments of part i of the lines of matrix j. sums [matrices, matrix_blocks].
__global__ void __launch_bounds__(line_threads)
    update_lines(NormSums* sums, const __grid_constant__ Batches batches, float beta) {
  batches.with_lines(blockIdx.y, [&](const auto& lines) {
    const NormSums sum = block_sum(lines.update(blockIdx.x, beta));
    if (threadIdx.x == 0) sums[blockIdx.y * matrix_blocks + blockIdx.x] = sum;
  });
}

/// The same blocks scale their lines.
__global__ void __launch_bounds__(line_threads)
    scale_lines(const NormSums* sums, const __grid_constant__ Batches batches) {
  static_assert(matrix_blocks <= line_threads);
  const NormSums part = threadIdx.x < matrix_blocks ? sums[blockIdx.y * matrix_blocks + threadIdx.x] : NormSums{};
  const NormSums sum = block_sum(part);
  const double norm = sqrt(sum.squares), scaled_norm = sqrt(sum.scaled);
  const auto factor = static_cast<float>(norm / (scaled_norm < 1e-10 ? 1e-10 : scaled_norm));
  batches.with_lines(blockIdx.y, [&](const auto& lines) { lines.scale(blockIdx.x, factor); });
}

int count_matrices(std::span<const NormuonBatch<float>> batches) {
  int matrices = 0;
  for (const NormuonBatch<float>& batch : batches) matrices += batch.x.count;
  return matrices;
}

/// At most max_batches.
void launch(cudaStream_t stream, NormSums* sums, std::span<const NormuonBatch<float>> batches, float beta) {
  Batches argument;
  std::ranges::copy(batches, argument.batch);
  const dim3 grid(matrix_blocks, count_matrices(batches));
  if (grid.y == 0) return;
  update_lines<<<grid, line_threads, 0, stream>>>(sums, argument, beta);
  scale_lines<<<grid, line_threads, 0, stream>>>(sums, argument);
  check_launch("normuon");
}

}  // namespace

template <class T>
std::size_t normuon_workspace(std::span<const NormuonBatch<T>> batches) {
  return WorkspaceAllocator::bytes<NormSums>(static_cast<std::size_t>(count_matrices(batches)) * matrix_blocks);
}

template <class T>
void normuon(Stream stream, std::span<const NormuonBatch<T>> batches, double beta, Workspace workspace) {
  assert(workspace.size() >= normuon_workspace<T>(batches));
  for (const NormuonBatch<T>& batch : batches) {
    if (batch.x.cols % 8 != 0 || reinterpret_cast<std::uintptr_t>(batch.x.data) % 16 != 0) {
      throw std::invalid_argument("normuon: rows must be whole, aligned 16-byte vectors");
    }
  }
  NormSums* const sums = WorkspaceAllocator(workspace).take<NormSums>(count_matrices(batches) * matrix_blocks);
  for (std::size_t first = 0; first < batches.size(); first += max_batches) {
    const std::size_t count = std::min<std::size_t>(max_batches, batches.size() - first);
    launch(cuda_stream(stream), sums, batches.subspan(first, count), static_cast<float>(beta));
  }
}

template std::size_t normuon_workspace(std::span<const NormuonBatch<float>>);
template void normuon(Stream, std::span<const NormuonBatch<float>>, double, Workspace);

}  // namespace nanorun::kernels::cuda
