// The squared-relu layer: GEMMs with the activation, and its derivative, in the epilogue.
//   forward:  h = relu(x wᵀ)²
//   backward: d_z = (d_out w_next) ∘ 2 sqrt(h)

#include "kernels/fused_gemm.cuh"
#include "kernels/matmul.hpp"

namespace nanorun::kernels::cuda {
namespace {

using namespace fused;
using namespace sm90;

struct Relu2Forward {
  using Operand = bf16;
  static constexpr Major b_major = Major::k;
  static constexpr int epilogue_loads = 0;
  struct EpilogueInputs {};

  CUtensorMap h;

  __device__ void epilogue_load(const WarpTile&, EpilogueInputs&, int) const {}

  static __device__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // passes NaN on

  __device__ __forceinline__ void epilogue(const WarpTile& tile, const Accumulator& accumulator,
                                           const EpilogueInputs&) const {
    store_tile(tile, h, [&](int i) { return pack_bf16(relu2(accumulator[2 * i]), relu2(accumulator[2 * i + 1])); });
  }
};

/// The tile of h is loaded in parts, as shared memory has no room for the whole.
struct Relu2Backward {
  using Operand = bf16;
  static constexpr Major b_major = Major::mn;
  static constexpr int parts = tile_n / staged_cols;
  static constexpr int epilogue_loads = parts + 1;
  struct EpilogueInputs {
    std::uint32_t h[tile_n / 4];
  };

  CUtensorMap d_z, h;
  const float* factor;

  /// Moves the part of h that was loaded before to registers, and loads the next in its place.
  __device__ __forceinline__ void epilogue_load(WarpTile& tile, EpilogueInputs& inputs, int i) const {
    if (i > 0) {
      mbarrier_wait(tile.loaded, tile.parity);
      tile.parity ^= 1;
      std::uint32_t* const h = inputs.h + (i - 1) * (staged_cols / 4);
#pragma unroll
      for (int j = 0; j < staged_cols / 16; ++j) ldmatrix(h + 4 * j, tile.block_at(j));
      fence_async_proxy();  // ends the reads before the next part arrives
      __syncwarp();
    }
    if (i == parts || !tile.leads()) return;
    if (i == 0) tma_store_wait_read<0>();
    mbarrier_arrive_expect_tx(tile.loaded, staged_cols / 64 * sizeof(StagedColumns));
    tma_load(tile.staged, h, 0, tile.row, (tile.col + i * staged_cols) / 64, tile.loaded);
  }

  __device__ __forceinline__ void epilogue(const WarpTile& tile, const Accumulator& accumulator,
                                           const EpilogueInputs& inputs) const {
    const float twice = factor ? 2 * *factor : 2;
    store_tile(tile, d_z, [&](int i) {
      const std::uint32_t h = inputs.h[i];
      const float low = __uint_as_float(h << 16), high = __uint_as_float(h & 0xFFFF0000u);
      return pack_bf16(twice * accumulator[2 * i] * sqrt_fast(low), twice * accumulator[2 * i + 1] * sqrt_fast(high));
    });
  }
};

}  // namespace

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w) {
  if (h.size() == 0) return;
  const Relu2Forward op{staged_map(h)};
  launch_gemm("linear_relu2_forward", stream, op, h.cols, x, w);
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h,
                           const acc_t<T>* factor) {
  if (d_z.size() == 0) return;
  const Relu2Backward op{staged_map(d_z), staged_map(h), factor};
  launch_gemm("linear_relu2_backward", stream, op, d_z.cols, d_out, w_next);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>, const float*);

}  // namespace nanorun::kernels::cuda
