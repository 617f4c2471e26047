#pragma once
// Epilogues of fused GEMMs with operands in 8 bits, whose weights have Fp8Rows::fused.

#include "kernels/device/fp8.cuh"
#include "kernels/device/gemm_op.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/linear/fp8_fused.cuh"

namespace nanorun::kernels::cuda {

/// A thread's two rows of the tile: from column `at` on, eight of each 32 columns. Of the 32 from at + offset on, those
/// with offset < limit[r] lie in the matrix.
struct Stretches {
  int row[2], limit[2], at;

  template <class WarpTile, class X>
  __device__ __forceinline__ Stretches(const WarpTile& tile, const Mat<X>& x) {
    const int lane = threadIdx.x % 32;
    at = tile.col + lane % 4 * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = tile.row + lane / 4 + 8 * r;
      limit[r] = row[r] < x.rows ? x.cols - tile.col : 0;
    }
  }

  /// Calls body(r, offset, sums) for all stretches of eight columns.
  template <class Body>
  static __device__ __forceinline__ void for_each(const GemmFragment& fragment, const Body& body) {
#pragma unroll
    for (int i = 0; i < gemm_columns / fused_rows; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sums[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[j] = fragment[16 * i + 4 * (j / 2) + 2 * r + j % 2];
        body(r, fused_rows * i, sums);
      }
    }
  }
};

/// out = or += *unscale a bᵀ, a of type A.
template <class Gemm, class A>
struct LinearFp8 {
  using Operand = A;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = false;
  static constexpr bool stages_rows = false;

  Mat<bf16> out;
  const float* factor;
  bool adds;

  __device__ void begin(typename Gemm::WarpTile&) const {}

  __device__ __forceinline__ void epilogue(const typename Gemm::WarpTile& tile, const GemmFragment& fragment) const {
    const float unscale = *factor;
    const Stretches mine(tile, out);
    bf16* const to[] = {out.row(mine.row[0]) + mine.at, out.row(mine.row[1]) + mine.at};
    Stretches::for_each(fragment, [&](int r, int offset, const float(&sums)[8]) {
      if (offset >= mine.limit[r]) return;
      Vector<bf16, 8> rounded;
      if (adds) {
        const Vector<float, 8> before = load_floats<8>(to[r] + offset);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          rounded.pair[j] =
              pack_bf16(unscale * sums[2 * j] + before.v[2 * j], unscale * sums[2 * j + 1] + before.v[2 * j + 1]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) rounded.pair[j] = pack_bf16(unscale * sums[2 * j], unscale * sums[2 * j + 1]);
      }
      store_vector(to[r] + offset, rounded);
    });
  }
};

}  // namespace nanorun::kernels::cuda
