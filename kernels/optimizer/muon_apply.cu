// NorMuon and the update of the weights, see muon_stages.hpp.

#include <cuda_fp16.h>

#include <cassert>

#include "kernels/device/ordered_sum.cuh"
#include "kernels/optimizer/muon_tiles.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Thread blocks that share the neurons of a matrix.
constexpr int neuron_blocks = 96;

using kernels::cuda::to_floats;
template <int N>
__device__ Vector<float, N> to_floats(const Vector<fp16, N>& stored) {
  Vector<float, N> x;
#pragma unroll
  for (int k = 0; k < N; ++k) x.v[k] = __half2float(__ushort_as_half(stored.v[k].bits));
  return x;
}

/// Loads elements of X, which are `scale` times what is stored.
template <int N, class T>
__device__ Vector<float, N> load_scaled(const T* p, float scale) {
  Vector<float, N> x = to_floats(load_vector<N>(p));
#pragma unroll
  for (int k = 0; k < N; ++k) x.v[k] *= scale;
  return x;
}

/// The stored matrices, one after another, and what multiplies each.
template <class T>
struct ScaledMatrices {
  const T* data;
  const float* scales;  ///< null: none

  __device__ float scale(int matrix) const { return (scales == nullptr ? 1 : scales[matrix]) / stored_factor<T>; }
};

/// Sums over neurons, for |X|² and |X s|².
struct NormSums {
  double squares, scaled;
  __device__ NormSums& operator+=(const NormSums& other) {
    squares += other.squares;
    scaled += other.scaled;
    return *this;
  }
};

__device__ NormSums warp_sums(const NormSums& x) { return {warp_sum(x.squares), warp_sum(x.scaled)}; }

/// Factor s of a neuron with second moment Q; NaN stays NaN.
__device__ float neuron_factor(float second_moment) {
  return 1 / sqrtf(second_moment < 1e-10f ? 1e-10f : second_moment);
}

/// Updates Q of a neuron from the sum of its squares; returns what the neuron adds.
__device__ NormSums update_neuron(float& second_moment, float squares, int length, float beta) {
  const float q = beta * second_moment + (1 - beta) * (squares / static_cast<float>(length));
  second_moment = q;
  const double s = neuron_factor(q);
  return {squares, squares * s * s};
}

/// Updates the Q of the thread block's share of the rows, a warp for each.
template <class T>
__device__ NormSums update_rows(Mat<const T> x, float scale, float* second_moment, float beta) {
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  NormSums sums{};
  for (int i = blockIdx.x * block_warps + warp; i < x.rows; i += neuron_blocks * block_warps) {
    float squares = 0;
#pragma unroll 4
    for (int j = 8 * lane; j < x.cols; j += 8 * warp_size) {
      const Vector<float, 8> v = load_scaled<8>(x.row(i) + j, scale);
      squares += dot(v, v);
    }
    squares = warp_sum(squares);
    if (lane == 0) sums += update_neuron(second_moment[i], squares, x.cols, beta);
  }
  return sums;
}

/// Updates the Q of columns, 32 at a time. Eight threads read every 32nd row, four columns each.
template <class T>
__device__ NormSums update_columns(Mat<const T> x, float scale, float* second_moment, float beta) {
  constexpr int width = 32, quads = width / 4, slots = block_threads / quads;
  __shared__ float partial[slots][width];
  const int quad = threadIdx.x % quads, slot = threadIdx.x / quads;
  NormSums sums{};
  for (int first = blockIdx.x * width; first < x.cols; first += neuron_blocks * width) {
    Vector<float, 4> squares{};
    const int row_end = first + 4 * quad < x.cols ? x.rows : 0;
#pragma unroll 8
    for (int i = slot; i < row_end; i += slots) {
      const Vector<float, 4> v = load_scaled<4>(x.row(i) + first + 4 * quad, scale);
#pragma unroll
      for (int k = 0; k < 4; ++k) squares.v[k] += v.v[k] * v.v[k];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) partial[slot][4 * quad + k] = squares.v[k];
    __syncthreads();
    const int j = first + static_cast<int>(threadIdx.x);
    if (threadIdx.x < width && j < x.cols) {
      float column = 0;
      for (int i = 0; i < slots; ++i) column += partial[i][threadIdx.x];
      sums += update_neuron(second_moment[j], column, x.rows, beta);
    }
    __syncthreads();  // the next columns' sums take their places
  }
  return sums;
}

/// Block (i, j) updates the second moments of part i of the neurons of matrix j: of the wide matrix the columns, except
/// where it is square. sums [matrices, neuron_blocks].
template <class T>
__global__ void __launch_bounds__(block_threads)
    update_neurons(NormSums* sums, const __grid_constant__ MuonBatches batches, ScaledMatrices<T> x, float beta) {
  __shared__ NormSums of_warps[block_warps];
  begin_after_previous();
  const MuonMatrix m(batches, blockIdx.y);
  const Mat<const T> wide(x.data + blockIdx.y * m.size(), min(m.rows, m.cols), max(m.rows, m.cols));
  const float scale = x.scale(blockIdx.y);
  const NormSums sum = warp_sums(m.rows == m.cols ? update_rows<T>(wide, scale, m.second_moment, beta)
                                                  : update_columns<T>(wide, scale, m.second_moment, beta));
  if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  NormSums of_block{};
  for (const NormSums& of_warp : of_warps) of_block += of_warp;
  sums[blockIdx.y * neuron_blocks + blockIdx.x] = of_block;
}

/// |X|_F / max(|X s|_F, 1e-10) of a matrix, for every thread.
__device__ float norm_factor(const NormSums* sums) {
  NormSums sum{};
  for (int i = threadIdx.x % warp_size; i < neuron_blocks; i += warp_size) sum += sums[i];
  sum = warp_sums(sum);
  const double scaled_norm = sqrt(sum.scaled);
  return static_cast<float>(sqrt(sum.squares) / (scaled_norm < 1e-10 ? 1e-10 : scaled_norm));
}

/// Moves the weights in the tile at (row, col) by x `factor` s.
template <class T>
__device__ void move_tile(const MuonMatrix& m, const T* x, int row, int col, float factor, TurnedTile& turned,
                          SumOfSquares& of_weights) {
  const int quad = threadIdx.x % tile_quads, first = threadIdx.x / tile_quads;
  if (m.tall()) {
#pragma unroll
    for (int i = first; i < tile_side; i += tile_step) {
      if (!m.contains(row + 4 * quad, col + i)) continue;
      turned.put(i, quad, load_vector<4>(x + m.wide_at(row + 4 * quad, col + i)));
    }
    __syncthreads();
  }
  const auto scale_of = [&](int neuron) {
    return m.second_moment == nullptr ? factor : factor * neuron_factor(m.second_moment[neuron]);
  };
  const bool by_rows = m.rows >= m.cols;
  Vector<float, 4> scale;
#pragma unroll
  for (int k = 0; k < 4; ++k) scale.v[k] = by_rows || col + 4 * quad >= m.cols ? 1 : scale_of(col + 4 * quad + k);
#pragma unroll
  for (int i = first; i < tile_side; i += tile_step) {
    if (!m.contains(row + i, col + 4 * quad)) continue;
    const std::size_t at = m.at(row + i, col + 4 * quad);
    const Vector<float, 4> update = to_floats(m.tall() ? turned.column<T>(quad, i) : load_vector<4>(x + at));
    Vector<float, 4> w = load_vector<4>(m.weights + at);
    if (by_rows) {
      const float of_row = scale_of(row + i);
      scale = {of_row, of_row, of_row, of_row};
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float step = update.v[k] * scale.v[k];
      w.v[k] -= m.lr * step + (!m.cautious || step * w.v[k] >= 0 ? m.decay * w.v[k] : 0);
      of_weights.add_square(w.v[k]);
    }
    store_vector(m.weights + at, w);
    store_vector(m.copy + at, narrow_to_bf16(w, m.truncates));
  }
  if (m.tall()) __syncthreads();  // the next tile takes its place
}

/// A thread block moves one part of a matrix after another. x, sums: of the matrices of `batches`.
template <class T>
__global__ void __launch_bounds__(block_threads)
    move_weights(const __grid_constant__ MuonBatches batches, int matrices, int parts, ScaledMatrices<T> x,
                 const NormSums* sums, OrderedSum total, double* squares) {
  __shared__ TurnedTile turned;
  begin_after_previous();
  SumOfSquares of_weights{total, squares};
  for (int i = blockIdx.x; i < matrices * parts; i += gridDim.x) {
    const int matrix = i / parts;
    const MuonMatrix m(batches, matrix);
    float factor = x.scale(matrix);
    if (m.second_moment != nullptr) factor *= norm_factor(sums + matrix * neuron_blocks);
    m.for_tiles(i % parts, [&](int row, int col) {
      move_tile(m, x.data + matrix * m.size(), row, col, factor, turned, of_weights);
    });
  }
  of_weights.finish();
}

}  // namespace

std::size_t muon_apply_workspace(int count) {
  return WorkspaceAllocator::bytes<NormSums>(static_cast<std::size_t>(count) * neuron_blocks);
}

template <class T>
void muon_apply(Stream stream, std::span<const MuonBatch<bf16>> batches, MatrixBatch<T> x, const float* scales,
                double normuon_beta, double* squares, Workspace workspace) {
  constexpr const char* op = "muon_apply";
  assert(workspace.size() >= muon_apply_workspace(x.count));
  NormSums* const sums =
      WorkspaceAllocator(workspace).take<NormSums>(static_cast<std::size_t>(x.count) * neuron_blocks);
  const int parts = matrix_parts(x.rows, x.cols);
  launch_batches(batches, [&](const MuonBatches& argument, int first, int count) {
    const ScaledMatrices<T> own{x.data + first * x.matrix_size(), scales == nullptr ? nullptr : scales + first};
    NormSums* const own_sums = sums + static_cast<std::size_t>(first) * neuron_blocks;
    if (argument.batch[0].second_moment != nullptr) {
      launch(op, stream, update_neurons<T>, dim3(neuron_blocks, count), block_threads, 0, own_sums, argument, own,
             static_cast<float>(normuon_beta));
    }
    const int blocks = blocks_for(static_cast<std::size_t>(count) * parts * block_threads);
    launch(op, stream, move_weights<T>, blocks, block_threads, 0, argument, count, parts, own, own_sums,
           OrderedSum(stream), squares);
  });
}

template void muon_apply(Stream, std::span<const MuonBatch<bf16>>, MatrixBatch<bf16>, const float*, double, double*,
                         Workspace);
template void muon_apply(Stream, std::span<const MuonBatch<bf16>>, MatrixBatch<fp16>, const float*, double, double*,
                         Workspace);

}  // namespace nanorun::kernels::cuda
