// The squared-relu layer on the tensor cores.
//   forward:  h = relu(x wᵀ)²
//   backward: d_z = (d_out w_next) ∘ 2 sqrt(h)

#include "kernels/fused_product.cuh"
#include "kernels/matmul.hpp"

namespace nanorun::kernels::cuda {
namespace {

using namespace sm90;
using fused::WarpTile;

struct Relu2Forward {
  static constexpr fused::Tiles tiles{256, 4, 128};
  static constexpr Major b_major = Major::k;
  struct Operand {};

  CUtensorMap h;

  __device__ void begin(const WarpTile&, Operand&) const {}
  __device__ void load(WarpTile&, Operand&) const {}

  static __device__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // keeps a NaN

  __device__ __forceinline__ void finish(const WarpTile& tile, const float (&sums)[tiles.cols / 2],
                                         const Operand&) const {
#pragma unroll
    for (int first = 0; first < tiles.cols; first += tiles.staged_cols) {
      std::uint32_t pairs[tiles.staged_cols / 4];
#pragma unroll
      for (int i = 0; i < tiles.staged_cols / 4; ++i) {
        const float* const pair = sums + first / 2 + 2 * i;
        pairs[i] = pack_bf16(relu2(pair[0]), relu2(pair[1]));
      }
      store_columns(tile, h, pairs, tile.col + first);
    }
  }
};

/// Its tiles are smaller: the h of a whole one needs room in shared memory.
struct Relu2Backward {
  static constexpr fused::Tiles tiles{192, 4, 192};
  static constexpr Major b_major = Major::mn;
  struct Operand {
    std::uint32_t h[tiles.cols / 4];
  };

  CUtensorMap d_z, h;

  __device__ __forceinline__ void begin(const WarpTile& tile, Operand&) const {
    if (!tile.leads()) return;
    wait_stores_read<0>();
    barrier_arrive_expect(tile.loaded, tiles.staged_cols / 64 * sizeof(fused::StagedColumns));
    load_box(tile.staged, h, 0, tile.row, tile.col / 64, tile.loaded);
  }

  __device__ __forceinline__ void load(WarpTile& tile, Operand& operand) const {
    barrier_wait(tile.loaded, tile.parity);
    tile.parity ^= 1;
#pragma unroll
    for (int i = 0; i < tiles.cols / 16; ++i) load_matrices(operand.h + 4 * i, tile.block_at(i));
  }

  __device__ __forceinline__ void finish(const WarpTile& tile, const float (&sums)[tiles.cols / 2],
                                         const Operand& operand) const {
    std::uint32_t pairs[tiles.cols / 4];
#pragma unroll
    for (int i = 0; i < tiles.cols / 4; ++i) {
      const std::uint32_t h = operand.h[i];
      const float low = __uint_as_float(h << 16), high = __uint_as_float(h & 0xFFFF0000u);
      pairs[i] = pack_bf16(2 * sums[2 * i] * sqrt_fast(low), 2 * sums[2 * i + 1] * sqrt_fast(high));
    }
    store_columns(tile, d_z, pairs, tile.col);
  }
};

}  // namespace

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w) {
  if (h.size() == 0) return;
  const Relu2Forward op{fused::output_map<Relu2Forward>(h)};
  fused::launch("linear_relu2_forward", stream, op, h.cols, x, w);
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h) {
  if (d_z.size() == 0) return;
  const Relu2Backward op{fused::output_map<Relu2Backward>(d_z), fused::output_map<Relu2Backward>(h)};
  fused::launch("linear_relu2_backward", stream, op, d_z.cols, d_out, w_next);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>);

}  // namespace nanorun::kernels::cuda
