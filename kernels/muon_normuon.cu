// NorMuon, see muon.hpp.

#include <cooperative_groups.h>

#include "kernels/muon.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Thread blocks that share a matrix, a cluster.
constexpr int matrix_blocks = 8;
constexpr int line_threads = 1024;
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

/// What the thread block of a rank in the cluster does: it updates the Q of its rows, and later scales them.
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

/// Sum over the threads of the cluster, for every thread, in a fixed order. The block must not end before the cluster
/// has synchronised.
__device__ NormSums cluster_sum(NormSums x) {
  __shared__ NormSums of_warps[line_warps];
  __shared__ NormSums of_block;
  x = {warp_sum(x.squares), warp_sum(x.scaled)};
  if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    NormSums sum{};
    for (const NormSums& of_warp : of_warps) sum += of_warp;
    of_block = sum;
  }
  sm90::cluster_sync();
  const auto cluster = cooperative_groups::this_cluster();
  NormSums total{};
  for (int rank = 0; rank < matrix_blocks; ++rank) total += *cluster.map_shared_rank(&of_block, rank);
  return total;
}

constexpr int max_batches = 32;

/// Kernel argument: matrices of several batches.
struct Batches {
  NormuonBatch<float> batch[max_batches];
};

template <class Lines>
__device__ void even_out(const Lines& mine, int rank, float beta) {
  const NormSums sums = cluster_sum(mine.update(rank, beta));
  const double norm = sqrt(sums.squares), scaled_norm = sqrt(sums.scaled);
  mine.scale(rank, static_cast<float>(norm / (scaled_norm < 1e-10 ? 1e-10 : scaled_norm)));
}

/// A cluster for each matrix.
__global__ void __cluster_dims__(matrix_blocks) __launch_bounds__(line_threads)
    normuon_matrix(const __grid_constant__ Batches batches, float beta) {
  const int rank = blockIdx.x;
  int index = blockIdx.y;
  const NormuonBatch<float>* batch = batches.batch;
  for (; index >= batch->x.count; ++batch) index -= batch->x.count;
  const Mat<float> x(batch->x.data + index * batch->x.matrix_size(), batch->x.rows, batch->x.cols);
  float* const second_moment = batch->second_moment + static_cast<std::size_t>(index) * batch->lines();
  if (x.rows >= x.cols) {
    even_out(Rows{x, second_moment}, rank, beta);
  } else {
    even_out(Columns{x, second_moment}, rank, beta);
  }
  sm90::cluster_sync();
}

/// At most max_batches.
void launch(cudaStream_t stream, std::span<const NormuonBatch<float>> batches, float beta) {
  Batches argument;
  std::ranges::copy(batches, argument.batch);
  int matrices = 0;
  for (const NormuonBatch<float>& batch : batches) matrices += batch.x.count;
  if (matrices == 0) return;
  normuon_matrix<<<dim3(matrix_blocks, matrices), line_threads, 0, stream>>>(argument, beta);
  check_launch("normuon");
}

}  // namespace

template <class T>
void normuon(Stream stream, std::span<const NormuonBatch<T>> batches, double beta) {
  for (const NormuonBatch<T>& batch : batches) {
    if (batch.x.cols % 8 != 0 || reinterpret_cast<std::uintptr_t>(batch.x.data) % 16 != 0) {
      throw std::invalid_argument("normuon: rows must be whole, aligned 16-byte vectors");
    }
  }
  for (std::size_t first = 0; first < batches.size(); first += max_batches) {
    const std::size_t count = std::min<std::size_t>(max_batches, batches.size() - first);
    launch(cuda_stream(stream), batches.subspan(first, count), static_cast<float>(beta));
  }
}

template void normuon(Stream, std::span<const NormuonBatch<float>>, double);

}  // namespace nanorun::kernels::cuda
