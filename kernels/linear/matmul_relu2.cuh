#pragma once
// The squared-relu layer: GEMMs with the activation, and its derivative, in the epilogue.
//   forward:  h = relu(x wᵀ + bias)²
//   backward: d_z = (d_out w_next) ∘ 2 sqrt(h)

#include "kernels/device/gemm_op.cuh"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {

template <class Gemm, bool has_bias>
struct Relu2Forward {
  using Operand = bf16;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = true;

  typename Gemm::Rows h;
  const float* bias;
  int cols;

  __device__ void begin(typename Gemm::WarpTile&) const {}

  static __device__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // passes NaN on

  /// z: elements 2 i and 2 i + 1 of this thread's fragment, whose place in the tile gemm_op.cuh states.
  __device__ __forceinline__ void add_bias_to(float2& z, const typename Gemm::WarpTile& tile, int i) const {
    const int col = tile.col + 8 * (i / 2) + 2 * static_cast<int>(threadIdx.x % 4);
    if (col >= cols) return;
    const float2 b = *reinterpret_cast<const float2*>(bias + col);
    z.x += b.x;
    z.y += b.y;
  }

  __device__ __forceinline__ void epilogue(typename Gemm::WarpTile& tile, const GemmFragment& sums) const {
    store_rows(tile, h, tile.col, [&](int i) {
      float2 z = {sums[2 * i], sums[2 * i + 1]};
      if constexpr (has_bias) add_bias_to(z, tile, i);
      return pack_bf16(relu2(z.x), relu2(z.y));
    });
  }
};

template <class Gemm>
struct Relu2Backward {
  using Operand = bf16;
  static constexpr Major b_major = Major::mn;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = true;

  typename Gemm::Rows d_z, h;
  const float* factor;

  __device__ __forceinline__ void begin(typename Gemm::WarpTile& tile) const { begin_update(tile, h); }

  __device__ __forceinline__ void epilogue(typename Gemm::WarpTile& tile, const GemmFragment& sums) const {
    const float twice = factor ? 2 * *factor : 2;
    update_rows(tile, h, d_z, [&](int i, std::uint32_t pair) {
      const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xFFFF0000u);
      return pack_bf16(twice * sums[2 * i] * sqrt_fast(low), twice * sums[2 * i + 1] * sqrt_fast(high));
    });
  }
};

template <class Gemm>
void relu2_forward(Stream stream, Mat<bf16> h, Mat<const bf16> x, Mat<const bf16> w, Vec<const float> bias) {
  constexpr const char* name = "linear_relu2_forward";
  require_bias(name, bias);
  if (h.size() == 0) return;
  const auto run = [&](const auto& op) { Gemm::launch(name, stream, op, h.cols, x, w); };
  if (bias.empty()) return run(Relu2Forward<Gemm, false>{Gemm::rows(h), nullptr, h.cols});
  run(Relu2Forward<Gemm, true>{Gemm::rows(h), bias.data(), h.cols});
}

template <class Gemm>
void relu2_backward(Stream stream, Mat<bf16> d_z, Mat<const bf16> d_out, Mat<const bf16> w_next, Mat<const bf16> h,
                    const float* factor) {
  if (d_z.size() == 0) return;
  const Relu2Backward<Gemm> op{Gemm::rows(d_z), Gemm::rows(h), factor};
  Gemm::launch("linear_relu2_backward", stream, op, d_z.cols, d_out, w_next);
}

}  // namespace nanorun::kernels::cuda
