#pragma once
// What Hopper's two kernels of symmetric GEMMs share: tiles, and squares of 256.

#include "kernels/hopper/sm90.cuh"
#include "kernels/hopper/tensor_map.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/optimizer/muon_symmetric_gemm.cuh"

namespace nanorun::kernels::cuda::hopper {

namespace symmetric {

using namespace cuda::symmetric;

constexpr int tile_k = 64, consumer_rows = 64;
static_assert(computes_triangle(tile_side, tile_k));

/// Boxes are 128 rows of a k-tile or of the addend's panel, and 64 rows of a panel of out.
struct Problem : Shape {
  CUtensorMap x, y, addend, out;
  int k_tiles, matrices;
};

/// Address of this lane's row of a 16 x 16 block for stmatrix_transposed().
__device__ __forceinline__ std::uint32_t transposed_block_at(const std::byte* columns, int row, int chunk) {
  const int lane = threadIdx.x % 32;
  return shared_address(columns) + swizzled(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2);
}

struct Stores {
  static __device__ __forceinline__ void direct(const std::byte* columns, int row, int chunk,
                                                const std::uint32_t (&pairs)[4]) {
    sm90::stmatrix(block_at(columns, row, chunk), pairs);
  }
  static __device__ __forceinline__ void turned(const std::byte* columns, int row, int chunk,
                                                const std::uint32_t (&pairs)[4]) {
    sm90::stmatrix_transposed(transposed_block_at(columns, row, chunk), pairs);
  }
};

/// compute_triangle() where computes_squares().
template <class T>
void launch_squares(Stream stream, const Problem& p);

}  // namespace symmetric
}  // namespace nanorun::kernels::cuda::hopper
