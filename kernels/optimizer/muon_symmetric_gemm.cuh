#pragma once
// What the bodies of symmetric GEMMs x yᵀ share: which tiles they compute, and the mirror images of these.

#include "kernels/device/gemm_op.cuh"
#include "kernels/device/op.hpp"
#include "kernels/device/pairs.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_TIERED({
  /// out = alpha s² x yᵀ + beta addend, symmetric, where computes_triangle(x.rows, x.cols). scales: s of each matrix;
  /// null: 1.
  template <class T>
  void compute_triangle(Stream stream, const GemmOptions& options, Mat<const T> x, Mat<const T> y, Mat<const T> addend,
                        Mat<T> out, const float* scales);
})

}  // namespace nanorun::kernels

namespace nanorun::kernels::cuda::symmetric {

constexpr int tile_side = 128, panel_side = 64;
static_assert(tile_side == gemm_columns);
/// Rows of a panel of 64 columns of a tile, by swizzled().
using Columns = std::byte[tile_side * 128];

struct Shape {
  float alpha, beta;
  int n, k;
  bool x_is_y;
  const float* scales;  ///< s of each matrix; null: 1

  __host__ __device__ int count() const { return triangle_tiles(n, tile_side); }
};

/// Origin of a tile in its matrix, and the first row of that matrix in the batch.
struct TilePosition {
  int row, col, matrix;

  /// The tile `index` of the batch, by rows of each matrix.
  __device__ TilePosition(const Shape& p, int index, int side = tile_side) : row(0) {
    const int tiles = p.n / side, count = triangle_tiles(p.n, side);
    matrix = index / count * p.n;
    index %= count;
    for (; index >= tiles - row; ++row) index -= tiles - row;
    col = (row + index) * side;
    row *= side;
  }
  __device__ bool diagonal() const { return row == col; }
  /// What multiplies the sums of its matrix.
  __device__ float alpha(const Shape& p) const {
    if (p.scales == nullptr) return p.alpha;
    const float s = p.scales[matrix / p.n];
    return p.alpha * s * s;
  }
  /// Whether the same rows of one matrix are both factors.
  __device__ bool one_factor(const Shape& p) const { return p.x_is_y && diagonal(); }
  /// Whether the part below the diagonal is the mirror image of the one above: rounding makes products of two factors
  /// asymmetric, and further products would multiply that.
  __device__ bool mirrored(const Shape& p) const { return diagonal() && !p.x_is_y; }
};

/// Address of this lane's row of a 16 x 16 block for ldmatrix() and stmatrix().
__device__ __forceinline__ std::uint32_t block_at(const std::byte* columns, int row, int chunk) {
  const int lane = threadIdx.x % 32;
  return shared_address(columns) + swizzled(row + lane % 16, chunk + lane / 16);
}
/// A warp's 8 x 8 matrix of 16-bit elements, transposed.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t matrix) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
  return out;
}

/// Replaces what is below the diagonal of a 16 x 16 block by the mirror image of what is above.
__device__ __forceinline__ void mirror_block(std::uint32_t (&pairs)[4]) {
  const int row = threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
  const std::uint32_t own = (row <= column ? 0x0000FFFFu : 0) | (row <= column + 1 ? 0xFFFF0000u : 0);
#pragma unroll
  for (const int k : {0, 3}) pairs[k] = (pairs[k] & own) | (transposed(pairs[k]) & ~own);
  pairs[1] = transposed(pairs[2]);
}

/// A thread's pairs of a 16 x 16 block, of its eight sums of it; `pairs` has the addend's where there is one. alpha:
/// TilePosition::alpha().
template <class T>
__device__ __forceinline__ void sum_block(std::uint32_t (&pairs)[4], const Shape& p, float alpha, const float* sums) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float low = alpha * sums[2 * k], high = alpha * sums[2 * k + 1];
    if (p.beta != 0) {
      const float2 addend = unpack_pair<T>(pairs[k]);
      low += p.beta * addend.x;
      high += p.beta * addend.y;
    }
    pairs[k] = pack_pair<T>(low, high);
  }
}

/// Epilogue of a warp: adds the addend to its 16 rows, stages them in its place, and stages their mirror image: below
/// the diagonal of a tile that is `mirrored`, else in `mirror`. `Stores` stores 16 x 16 blocks, as they are and turned.
template <class T, class Stores>
__device__ __forceinline__ void stage(Columns (&direct)[2], Columns (&mirror)[2], const Shape& p, float alpha,
                                      const GemmFragment& accumulator, int warp, bool mirrored) {
  constexpr int warps = panel_side / 16;  // of the rows of the tile that are a panel of its mirror image
#pragma unroll
  for (int i = 0; i < tile_side / 16; ++i) {
    if (mirrored && i < warp) continue;
    const std::uint32_t at = block_at(direct[i / 4], 16 * warp, i % 4 * 2);
    std::uint32_t pairs[4];
    if (p.beta != 0) ldmatrix(pairs, at);
    sum_block<T>(pairs, p, alpha, accumulator + 8 * i);
    if (mirrored && i == warp) mirror_block(pairs);
    Stores::direct(direct[i / 4], 16 * warp, i % 4 * 2, pairs);
    if (mirrored && i == warp) continue;
    std::byte* const image = mirrored ? direct[warp / warps] : mirror[warp / warps];
    Stores::turned(image, 16 * i, warp % warps * 2, pairs);
  }
}

}  // namespace nanorun::kernels::cuda::symmetric
