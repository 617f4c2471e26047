// A thread block has a matrix in shared memory, in fp32 throughout: GEMMs on tensor cores would need sides of whole
// tiles.

#include "kernels/optimizer/muon_scalars.hpp"

#include <stdexcept>

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// The iteration as a kernel argument.
struct Iteration {
  static constexpr int most_steps = 64;
  float norm_factor, eps;
  int count;
  float a[most_steps], b[most_steps], c[most_steps];
};

Iteration iteration_of(const PolarIteration& iteration) {
  if (iteration.steps.size() > Iteration::most_steps) throw std::invalid_argument("muon_scalars: at most 64 steps");
  Iteration argument{static_cast<float>(iteration.norm_factor), static_cast<float>(iteration.eps), 0, {}, {}, {}};
  for (const PolarStep& step : iteration.steps) {
    argument.a[argument.count] = static_cast<float>(step.a);
    argument.b[argument.count] = static_cast<float>(step.b);
    argument.c[argument.count++] = static_cast<float>(step.c);
  }
  return argument;
}

struct Factors {
  float momentum, gradient_scale, beta, lr, decay;
};

/// Shared memory: the matrix, twice, as a wide one, so with the sides exchanged where there are more rows than columns;
/// and two squares of its shorter side.
struct Scratch {
  float *x, *next, *gram, *p;
  int rows, cols;
  bool tall;

  __device__ Scratch(float* memory, int matrix_rows, int matrix_cols)
      : rows(min(matrix_rows, matrix_cols)), cols(max(matrix_rows, matrix_cols)), tall(matrix_rows > matrix_cols) {
    x = memory;
    next = x + rows * cols;
    gram = next + rows * cols;
    p = gram + rows * rows;
  }
  /// Of element (i, j) of the matrix.
  __device__ int place(int i, int j) const { return tall ? j * cols + i : i * cols + j; }
};

int scratch_bytes(int rows, int cols) {
  const int side = std::min(rows, cols);
  return static_cast<int>(sizeof(float)) * 2 * (rows * cols + side * side);
}

/// The sum over the block, in every thread.
__device__ float block_sum(float x) {
  __shared__ float of_warps[block_warps];
  const float of_warp = warp_sum(x);
  if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = of_warp;
  __syncthreads();
  float sum = 0;
  for (const float part : of_warps) sum += part;
  __syncthreads();
  return sum;
}

/// x = (a I + b G + c G G) x with G = x xᵀ.
__device__ void polar_step(Scratch& s, float a, float b, float c) {
  const int n = s.rows;
  for (int at = threadIdx.x; at < n * n; at += block_threads) {
    const int i = at / n, j = at % n;
    float sum = 0;
    for (int k = 0; k < s.cols; ++k) sum += s.x[i * s.cols + k] * s.x[j * s.cols + k];
    s.gram[at] = sum;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < n * n; at += block_threads) {
    const int i = at / n, j = at % n;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += s.gram[i * n + k] * s.gram[j * n + k];
    s.p[at] = b * s.gram[at] + c * sum + (i == j ? a : 0);
  }
  __syncthreads();
  for (int at = threadIdx.x; at < n * s.cols; at += block_threads) {
    const int i = at / s.cols, j = at % s.cols;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += s.p[i * n + k] * s.x[k * s.cols + j];
    s.next[at] = sum;
  }
  __syncthreads();
  float* const done = s.x;
  s.x = s.next;
  s.next = done;
}

__device__ float stored(float x, bool round) { return round ? __bfloat162float(__float2bfloat16_rn(x)) : x; }

/// Leaves the factors s |X|_F / max(|X s|_F, 1e-10) of the rows in `factors`, and updates their second moments.
__device__ void row_factors(float* factors, const Scratch& s, float* second_moment, int rows, int cols, float beta,
                            bool round) {
  float norm = 0, scaled_norm = 0;
  for (int i = threadIdx.x; i < rows; i += block_threads) {
    float squares = 0;
    for (int j = 0; j < cols; ++j) squares += s.x[s.place(i, j)] * s.x[s.place(i, j)];
    const float moment = beta * second_moment[i] + (1 - beta) * squares / static_cast<float>(cols);
    second_moment[i] = stored(moment, round);
    factors[i] = 1 / sqrtf(moment < 1e-10f ? 1e-10f : moment);
    norm += squares;
    scaled_norm += squares * factors[i] * factors[i];
  }
  const float scaled = sqrtf(block_sum(scaled_norm)),
              factor = sqrtf(block_sum(norm)) / (scaled < 1e-10f ? 1e-10f : scaled);
  for (int i = threadIdx.x; i < rows; i += block_threads) factors[i] *= factor;
  __syncthreads();
}

__global__ void __launch_bounds__(block_threads)
    update_scalars(const __grid_constant__ ScalarMatrices<float> all, const __grid_constant__ Iteration iteration,
                   Factors f, OrderedSum total, MuonSquares squares) {
  extern __shared__ float memory[];
  begin_after_previous();
  Scratch s(memory, all.rows, all.cols);
  const int size = all.rows * all.cols;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * size;
  SumOfSquares gradients{total, squares.gradients}, weights{total, squares.weights};
  float norm = 0;
  for (int at = threadIdx.x; at < size; at += block_threads) {
    const float gradient = f.gradient_scale * all.gradients[first + at];
    const float momentum = f.momentum * all.momentum[first + at] + (1 - f.momentum) * gradient;
    const float update = (1 - f.momentum) * gradient + f.momentum * momentum;
    all.momentum[first + at] = stored(momentum, all.round_moments);
    all.gradients[first + at] = 0;
    s.x[s.place(at / all.cols, at % all.cols)] = update;
    gradients.add_square(gradient);
    norm += update * update;
  }
  const float normalised = 1 / (iteration.norm_factor * sqrtf(block_sum(norm)) + iteration.eps);
  for (int at = threadIdx.x; at < size; at += block_threads) s.x[at] *= normalised;
  __syncthreads();
  for (int k = 0; k < iteration.count; ++k) polar_step(s, iteration.a[k], iteration.b[k], iteration.c[k]);
  if (all.second_moment != nullptr) {
    row_factors(s.next, s, all.second_moment + static_cast<std::size_t>(blockIdx.x) * all.rows, all.rows, all.cols,
                f.beta, all.round_moments);
  }
  for (int at = threadIdx.x; at < size; at += block_threads) {
    const int i = at / all.cols;
    const float x = s.x[s.place(i, at % all.cols)] * (all.second_moment != nullptr ? s.next[i] : 1);
    const float old = all.weights[first + at];
    const float weight =
        stored(old - (f.lr * x + (!all.cautious || x * old >= 0 ? f.decay * old : 0)), all.round_weights);
    all.weights[first + at] = weight;
    weights.add_square(weight);
  }
  total.add({gradients.sum, weights.sum}, {squares.gradients, squares.weights});
}

}  // namespace

template <class A>
void muon_scalars(Stream stream, const ScalarMatrices<A>& matrices, const MuonOptions& options,
                  const MuonSquares& squares) {
  if (!is_scalar_matrix(matrices.rows, matrices.cols)) throw std::invalid_argument("muon_scalars: too large a matrix");
  if (matrices.count == 0) return;
  const Factors factors{static_cast<float>(options.momentum), static_cast<float>(options.gradient_scale),
                        static_cast<float>(options.normuon_beta), static_cast<float>(matrices.lr),
                        static_cast<float>(matrices.decay)};
  launch("muon_scalars", stream, update_scalars, matrices.count, block_threads,
         scratch_bytes(matrices.rows, matrices.cols), matrices, iteration_of(options.iteration), factors,
         OrderedSum(stream), squares);
}

template void muon_scalars(Stream, const ScalarMatrices<float>&, const MuonOptions&, const MuonSquares&);

}  // namespace nanorun::kernels::cuda
