// The squared-relu layer: GEMMs with the activation, and its derivative, in the epilogue.
//   forward:  h = relu(x wᵀ + bias)²
//   backward: d_z = (d_out w_next) ∘ 2 sqrt(h)

#include "kernels/hopper/fused_gemm.cuh"
#include "kernels/linear/matmul.hpp"

namespace nanorun::kernels::cuda {
namespace {

using namespace fused;
using namespace sm90;

template <bool has_bias>
struct Relu2Forward {
  using Operand = bf16;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = true;

  CUtensorMap h;
  const float* bias;
  int cols;

  __device__ void begin(WarpTile&) const {}

  static __device__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // passes NaN on

  /// z: elements 2 i and 2 i + 1 of this thread's fragment, whose place in the tile wgmma.cuh states.
  __device__ __forceinline__ void add_bias_to(float2& z, const WarpTile& tile, int i) const {
    const int col = tile.col + 8 * (i / 2) + 2 * static_cast<int>(threadIdx.x % 4);
    if (col >= cols) return;
    const float2 b = *reinterpret_cast<const float2*>(bias + col);
    z.x += b.x;
    z.y += b.y;
  }

  __device__ __forceinline__ void epilogue(WarpTile& tile, const Fragment& sums) const {
    store_rows(tile, h, tile.col, [&](int i) {
      float2 z = {sums[2 * i], sums[2 * i + 1]};
      if constexpr (has_bias) add_bias_to(z, tile, i);
      return pack_bf16(relu2(z.x), relu2(z.y));
    });
  }
};

/// Each part of h is loaded to the buffer that d_z is then stored from, one part ahead.
struct Relu2Backward {
  using Operand = bf16;
  static constexpr Major b_major = Major::mn;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = true;

  CUtensorMap d_z, h;
  const float* factor;

  __device__ __forceinline__ void begin(WarpTile& tile) const {
    tile.buffer = 0;
    load(tile, 0, tile.row);
    load(tile, 1, tile.row + part_rows);
  }

  __device__ __forceinline__ void epilogue(WarpTile& tile, const Fragment& sums) const {
    const float twice = factor ? 2 * *factor : 2;
    const unsigned buffer = tile.buffer;
    if (tile.part > 0 && tile.part < tile_parts - 1) load(tile, buffer ^ 1, tile.row + part_rows);
    mbarrier_wait(tile.loaded[buffer], tile.parities >> buffer & 1);
    tile.parities ^= 1u << buffer;
#pragma unroll
    for (int i = 0; i < tile_n / 16; ++i) {
      std::uint32_t pairs[4];
      ldmatrix(pairs, tile.block_at(i));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float low = __uint_as_float(pairs[j] << 16), high = __uint_as_float(pairs[j] & 0xFFFF0000u);
        const float* const sum = sums + 8 * i + 2 * j;
        pairs[j] = pack_bf16(twice * sum[0] * sqrt_fast(low), twice * sum[1] * sqrt_fast(high));
      }
      stmatrix(tile.block_at(i), pairs);
    }
    tile.store_buffer(d_z, tile.col);
  }

 private:
  /// Loads a part of h once all earlier stores have left shared memory.
  __device__ __forceinline__ void load(WarpTile& tile, int buffer, int row) const {
    if (!tile.leads()) return;
    tma_store_wait_read<0>();
    mbarrier_arrive_expect_tx(tile.loaded[buffer], sizeof(StagedRows));
    tma_load_evict_first(tile.staged[buffer], h, 0, row, tile.col / panel_columns, tile.loaded[buffer]);
  }
};

}  // namespace

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w,
                          Vec<const std::type_identity_t<acc_t<T>>> bias) {
  constexpr const char* name = "linear_relu2_forward";
  require_bias(name, bias);
  if (h.size() == 0) return;
  const auto run = [&](const auto& op) { launch_gemm(name, stream, op, h.cols, x, w); };
  if (bias.empty()) return run(Relu2Forward<false>{staged_map(h), nullptr, h.cols});
  run(Relu2Forward<true>{staged_map(h), bias.data(), h.cols});
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h,
                           const acc_t<T>* factor) {
  if (d_z.size() == 0) return;
  const Relu2Backward op{staged_map(d_z), staged_map(h), factor};
  launch_gemm("linear_relu2_backward", stream, op, d_z.cols, d_out, w_next);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Vec<const float>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>, const float*);

}  // namespace nanorun::kernels::cuda
