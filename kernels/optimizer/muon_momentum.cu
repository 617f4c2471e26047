// Nesterov momentum of Muon's matrices, see muon_stages.hpp.

#include "kernels/device/ordered_sum.cuh"
#include "kernels/optimizer/muon_tiles.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A factor and 1 minus it.
struct Share {
  float part, rest;
  explicit Share(double p) : part(static_cast<float>(p)), rest(static_cast<float>(1 - p)) {}
};

/// Of MuonOptions.
struct Rates {
  Share nesterov, fast, slow, mix;
  float scale;

  explicit Rates(const MuonOptions& options)
      : nesterov(options.momentum),
        fast(options.fast_momentum),
        slow(options.slow_momentum),
        mix(options.momentum_mix),
        scale(static_cast<float>(options.gradient_scale)) {}
};

/// A momentum, or gradients, in elements of type M, float or bf16.
template <class M>
__device__ M* elements(const Momentum<bf16>& momentum) {
  if constexpr (std::is_same_v<M, float>) {
    return momentum.wide;
  } else {
    return momentum.narrow;
  }
}

template <class M>
__device__ void store_momentum(M* p, const Vector<float, 4>& x, bool rounds) {
  if constexpr (std::is_same_v<M, bf16>) {
    store_rounded(p, x);
  } else {
    store_vector(p, rounds ? to_floats(round_to_bf16(x)) : x);
  }
}

/// Updates the momenta in the tile at (row, col), writes u to x, and returns the thread's sum of u².
template <bool has_slow, class M, class G>
__device__ float update_tile(const MuonMatrix& m, bf16* x, int row, int col, const Rates& rates, TurnedTile& turned,
                             SumOfSquares& of_gradients) {
  const int quad = threadIdx.x % tile_quads, first = threadIdx.x / tile_quads;
  float squares = 0;
#pragma unroll
  for (int i = first; i < tile_side; i += tile_step) {
    if (!m.contains(row + i, col + 4 * quad)) continue;
    const std::size_t at = m.at(row + i, col + 4 * quad);
    const Vector<float, 4> g = load_floats<4>(elements<G>(m.gradients) + at);
    M *const fast_at = elements<M>(m.momentum) + at, *const slow_at = elements<M>(m.slow_momentum) + at;
    Vector<float, 4> buf = load_floats<4>(fast_at), slow, u;
    if constexpr (has_slow) slow = load_floats<4>(slow_at);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float gradient = rates.scale * g.v[k];
      of_gradients.add_square(gradient);
      const Share& own = has_slow ? rates.fast : rates.nesterov;
      buf.v[k] = own.part * buf.v[k] + own.rest * gradient;
      float mixed = buf.v[k];
      if constexpr (has_slow) {
        slow.v[k] = rates.slow.part * slow.v[k] + rates.slow.rest * gradient;
        mixed = rates.mix.part * mixed + rates.mix.rest * slow.v[k];
      }
      u.v[k] = rates.nesterov.rest * gradient + rates.nesterov.part * mixed;
      squares += u.v[k] * u.v[k];
    }
    store_momentum(fast_at, buf, m.round_momenta);
    if constexpr (has_slow) store_momentum(slow_at, slow, m.round_momenta);
    const Vector<bf16, 4> rounded = round_to_bf16(u);
    if (m.tall()) {
      turned.put(i, quad, rounded);
    } else {
      store_vector(x + at, rounded);
    }
  }
  if (!m.tall()) return squares;
  __syncthreads();
#pragma unroll
  for (int i = first; i < tile_side; i += tile_step) {
    if (m.contains(row + 4 * quad, col + i)) {
      store_vector(x + m.wide_at(row + 4 * quad, col + i), turned.column<bf16>(quad, i));
    }
  }
  __syncthreads();  // the next tile takes its place
  return squares;
}

/// A thread block updates one part of a matrix after another. x, squares_of_x: of the matrices of `batches`.
template <bool has_slow, class M, class G>
__global__ void __launch_bounds__(block_threads)
    update_momentum(const __grid_constant__ MuonBatches batches, int matrices, int parts, bf16* x, float* squares_of_x,
                    Rates rates, OrderedSum total, double* squares) {
  __shared__ TurnedTile turned;
  __shared__ float of_warps[block_warps];
  begin_after_previous();
  SumOfSquares of_gradients{total, squares};
  for (int i = blockIdx.x; i < matrices * parts; i += gridDim.x) {
    const int matrix = i / parts;
    const MuonMatrix m(batches, matrix);
    float sum = 0;
    m.for_tiles(i % parts, [&](int row, int col) {
      sum += update_tile<has_slow, M, G>(m, x + matrix * m.size(), row, col, rates, turned, of_gradients);
    });
    sum = warp_sum(sum);
    if (threadIdx.x % warp_size == 0) of_warps[threadIdx.x / warp_size] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      float of_part = 0;
      for (const float of_warp : of_warps) of_part += of_warp;
      squares_of_x[i] = of_part;
    }
    __syncthreads();  // the next part's sums take their places
  }
  of_gradients.finish();
}

template <class M, class G>
auto kernel_with(bool has_slow) {
  return has_slow ? update_momentum<true, M, G> : update_momentum<false, M, G>;
}

/// The kernel for batches that have slow momenta, and narrow momenta and gradients, or none, as this one.
auto kernel_for(const MuonBatch<bf16>& batch) {
  const bool has_slow = !batch.slow_momentum.null(), narrow = batch.momentum.narrow != nullptr;
  if (batch.narrow_gradients != nullptr)
    return narrow ? kernel_with<bf16, bf16>(has_slow) : kernel_with<float, bf16>(has_slow);
  return narrow ? kernel_with<bf16, float>(has_slow) : kernel_with<float, float>(has_slow);
}

}  // namespace

int matrix_parts(int rows, int cols) {
  return ceil_div(ceil_div(rows, tile_side) * ceil_div(cols, tile_side), part_tiles);
}

void muon_momentum(Stream stream, std::span<const MuonBatch<bf16>> batches, MatrixBatch<bf16> x, float* squares_of_x,
                   const MuonOptions& options, double* squares) {
  const int parts = matrix_parts(x.rows, x.cols);
  const Rates rates(options);
  launch_batches(batches, [&](const MuonBatches& argument, int first, int count) {
    const int blocks = blocks_for(static_cast<std::size_t>(count) * parts * block_threads);
    launch("muon_momentum", stream, kernel_for(batches.front()), blocks, block_threads, 0, argument, count, parts,
           x.data + first * x.matrix_size(), squares_of_x + static_cast<std::size_t>(first) * parts, rates,
           OrderedSum(stream), squares);
  });
}

}  // namespace nanorun::kernels::cuda
