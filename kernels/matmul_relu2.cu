// The squared-relu layer on the tensor cores.
//   forward:  h = relu(x wᵀ)²
//   backward: d_z = (d_out w_next) ∘ 2 sqrt(h)

#include "kernels/fused_gemm.cuh"
#include "kernels/matmul.hpp"

namespace nanorun::kernels::cuda {
namespace {

using namespace fused;
using namespace sm90;

struct Relu2Forward {
  static constexpr Major b_major = Major::k;
  static constexpr int fetches = 0;
  struct Operand {};

  CUtensorMap h;

  __device__ void fetch(const WarpTile&, Operand&, int) const {}

  static __device__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // keeps a NaN

  __device__ __forceinline__ void finish(const WarpTile& tile, const Sums& sums, const Operand&) const {
    store_tile(tile, h, [&](int i) { return pack_bf16(relu2(sums[2 * i]), relu2(sums[2 * i + 1])); });
  }
};

/// h comes in parts, as that of a whole tile has no room in shared memory.
struct Relu2Backward {
  static constexpr Major b_major = Major::mn;
  static constexpr int parts = tile_cols / staged_cols;
  static constexpr int fetches = parts + 1;
  struct Operand {
    std::uint32_t h[tile_cols / 4];
  };

  CUtensorMap d_z, h;

  /// Reads the part of h that was loaded before, and loads the next in its place.
  __device__ __forceinline__ void fetch(WarpTile& tile, Operand& operand, int i) const {
    if (i > 0) {
      barrier_wait(tile.loaded, tile.parity);
      tile.parity ^= 1;
      std::uint32_t* const h = operand.h + (i - 1) * (staged_cols / 4);
#pragma unroll
      for (int j = 0; j < staged_cols / 16; ++j) load_matrices(h + 4 * j, tile.block_at(j));
      fence_async_proxy();  // ends the reads before the next part arrives
      __syncwarp();
    }
    if (i == parts || !tile.leads()) return;
    if (i == 0) wait_stores_read<0>();
    barrier_arrive_expect(tile.loaded, staged_cols / 64 * sizeof(StagedColumns));
    load_box(tile.staged, h, 0, tile.row, (tile.col + i * staged_cols) / 64, tile.loaded);
  }

  __device__ __forceinline__ void finish(const WarpTile& tile, const Sums& sums, const Operand& operand) const {
    store_tile(tile, d_z, [&](int i) {
      const std::uint32_t h = operand.h[i];
      const float low = __uint_as_float(h << 16), high = __uint_as_float(h & 0xFFFF0000u);
      return pack_bf16(2 * sums[2 * i] * sqrt_fast(low), 2 * sums[2 * i + 1] * sqrt_fast(high));
    });
  }
};

}  // namespace

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w) {
  if (h.size() == 0) return;
  const Relu2Forward op{staged_map(h)};
  launch("linear_relu2_forward", stream, op, h.cols, x, w);
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h) {
  if (d_z.size() == 0) return;
  const Relu2Backward op{staged_map(d_z), staged_map(h)};
  launch("linear_relu2_backward", stream, op, d_z.cols, d_out, w_next);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>);

}  // namespace nanorun::kernels::cuda
