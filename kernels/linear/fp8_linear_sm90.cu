// Products of operands in 8 bits that fp8_quantise() has made: fused GEMMs with the hidden units, and those of cuBLASLt
// and fp8_weight_gradient, which add up in fp32.

#include "kernels/linear/fp8_linear.hpp"

#include <cassert>

#include "kernels/device/cublas.hpp"
#include "kernels/device/magnitude.cuh"
#include "kernels/linear/fp8_epilogues_sm90.cuh"
#include "kernels/linear/fp8_weight_gradient.hpp"

namespace nanorun::kernels::cuda::hopper {
namespace {

using namespace fused;
using namespace sm90;

template <class F>
Mat<const F> as(Mat<const fp8> x) {
  return {reinterpret_cast<const F*>(x.data), x.rows, x.cols, x.ld};
}

/// Calls body(F()) with the format's type.
template <class Body>
void with_format(Fp8Format format, const Body& body) {
  if (format == Fp8Format::e4m3) return body(e4m3());
  body(e5m2());
}

void require_product(const char* name, [[maybe_unused]] int rows, Mat<const fp8> a, Mat<const fp8> b,
                     [[maybe_unused]] int cols) {
  assert(a.rows == rows && b.rows == cols && a.cols == b.cols);
  require_fp8_rows(name, a);
  require_fp8_rows(name, b);
  require_fp8_sides(name, b.rows, b.cols);
}

/// Eight results of a row, quantised to F, and what Fp8Result asks for.
template <class F>
struct ResultOf {
  float inverse;
  float largest = 0;
  int saturated = 0;

  __device__ __forceinline__ explicit ResultOf(const Fp8Result<float>& result) : inverse(*result.inverse) {}

  __device__ __forceinline__ uint2 quantise(const float (&values)[8]) {
    float scaled[8], largest_here = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      largest_here = fmaxf(largest_here, fabsf(values[j]));  // NaN does not count
      scaled[j] = inverse * values[j];
    }
    largest = fmaxf(largest, largest_here);
    if (saturates<F>(inverse * largest_here)) {
#pragma unroll
      for (int j = 0; j < 8; ++j) saturated += saturates<F>(scaled[j]);
    }
    return {pack_fp8<F>(scaled), pack_fp8<F>(scaled + 4)};
  }
  /// All lanes of a warp call it.
  __device__ __forceinline__ void store(const Fp8Result<float>& result) const {
    const unsigned in_warp = __reduce_max_sync(~0u, __float_as_uint(largest));
    if (threadIdx.x % warp_size == 0) raise(result.maximum, in_warp);
    if (result.saturated) add_saturated(result.saturated, saturated);
  }
};

/// hq alone.
struct Relu2Forward {
  using Operand = e4m3;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = false;

  Mat<fp8> hq;
  Fp8Result<float> result;
  const float* factor;

  __device__ void begin(WarpTile&) const {}

  __device__ __forceinline__ void epilogue(const WarpTile& tile, const Fragment& fragment) const {
    const float unscale = *factor;
    ResultOf<e4m3> of(result);
    const Stretches mine(tile, hq);
    fp8* const to[] = {hq.row(mine.row[0]) + mine.at, hq.row(mine.row[1]) + mine.at};
    Stretches::for_each(fragment, [&](int r, int offset, const float(&sums)[8]) {
      if (offset >= mine.limit[r]) return;
      float h[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float z = unscale * sums[j];
        h[j] = z < 0 ? 0 : z * z;  // passes NaN on
      }
      *reinterpret_cast<uint2*>(to[r] + offset) = of.quantise(h);
    });
    of.store(result);
  }
};

/// h, and hq where that is kept.
template <bool keeps_quantised>
struct Relu2ForwardOfBoth {
  using Operand = e4m3;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = false;

  Mat<bf16> h;
  Mat<fp8> hq;
  Fp8Result<float> result;
  const float* factor;

  __device__ void begin(WarpTile&) const {}

  __device__ __forceinline__ void epilogue(const WarpTile& tile, const Fragment& fragment) const {
    const float unscale = *factor, inverse = keeps_quantised ? *result.inverse : 0;
    const bool counts = keeps_quantised && result.saturated != nullptr;
    const Stretches mine(tile, h);
    bf16* const to[] = {h.row(mine.row[0]) + mine.at, h.row(mine.row[1]) + mine.at};
    fp8* const to_quantised[] = {hq.row(mine.row[0]) + mine.at, hq.row(mine.row[1]) + mine.at};
    std::uint32_t largest = 0;  // also of rows and columns beyond the last: zeros
    int saturated = 0;
    Stretches::for_each(fragment, [&](int r, int offset, const float(&sums)[8]) {
      float squares[8];  // with the sign of the sum: the conversions make zeros of negative ones
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float z = unscale * sums[j];
        squares[j] = z * fabsf(z);
      }
      std::uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = pack_bf16_relu(squares[2 * j], squares[2 * j + 1]);
        largest = max_bf16(largest, pairs[j]);
      }
      const uint4 rounded = {pairs[0], pairs[1], pairs[2], pairs[3]};
      if (offset < mine.limit[r]) __stcs(reinterpret_cast<uint4*>(to[r] + offset), rounded);
      if constexpr (keeps_quantised) {
        const uint2 q = {quantised(squares, inverse), quantised(squares + 4, inverse)};
        if (offset < mine.limit[r]) *reinterpret_cast<uint2*>(to_quantised[r] + offset) = q;
        if (counts) {
#pragma unroll
          for (int j = 0; j < 8; ++j) saturated += squares[j] * inverse > saturates_above(Fp8Format::e4m3);
        }
      }
    });
    const unsigned in_warp = __reduce_max_sync(~0u, larger_of(largest));
    if (tile.leads()) raise(result.maximum, in_warp);
    if (counts) add_saturated(result.saturated, saturated);
  }

 private:
  static __device__ __forceinline__ std::uint32_t quantised(const float* x, float inverse) {
    const std::uint32_t low = pack_e4m3_relu(x[0] * inverse, x[1] * inverse);
    return low | pack_e4m3_relu(x[2] * inverse, x[3] * inverse) << 16;
  }
};

/// Values of two bytes of e4m3, neither negative, over 256: as the bits of a half, a byte's exponent is too small by 8.
/// byte_0 and byte_1: which of the eight bytes.
template <int byte_0, int byte_1>
__device__ __forceinline__ float2 values_over_256(uint2 bytes) {
  const std::uint32_t apart = __byte_perm(bytes.x, bytes.y, byte_0 | byte_1 << 8) & 0x00FF00FF;
  const std::uint32_t halves = apart << 7;
  return __half22float2(reinterpret_cast<const __half2&>(halves));
}

/// hq of all parts of a tile is loaded before its first k-tile.
template <class F>
struct Relu2Backward {
  using Operand = F;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = true;

  CUtensorMap hq;  ///< by pairs of bytes
  Mat<fp8> dq;
  Fp8Result<float> result;
  const float *factor, *scale_h;

  __device__ __forceinline__ void begin(WarpTile& tile) const {
    __syncwarp();  // all lanes have read those of the tile before
    if (!tile.leads()) return;
    mbarrier_arrive_expect_tx(tile.loaded[0], tile_parts * part_bytes);
#pragma unroll
    for (int part = 0; part < tile_parts; ++part) {
      tma_load_evict_first(hidden(tile, part), hq, 0, tile.row + part_rows * part, tile.col / tile_n, tile.loaded[0]);
    }
  }

  __device__ __forceinline__ void epilogue(WarpTile& tile, const Fragment& fragment) const {
    const float scale = 32 * *factor * sqrtf(*scale_h);  // 2 and the root of 256
    ResultOf<F> of(result);
    const Stretches mine(tile, dq);
    fp8* const to[] = {dq.row(mine.row[0]) + mine.at, dq.row(mine.row[1]) + mine.at};
    const int lane = threadIdx.x % warp_size;
    const std::byte* const from = hidden(tile, tile.part) + lane % 2 * sizeof(uint2);
    if (tile.part == 0) {
      mbarrier_wait(tile.loaded[0], tile.parities & 1);
      tile.parities ^= 1;
    }
    Stretches::for_each(fragment, [&](int r, int offset, const float(&sums)[8]) {
      const int at = swizzled(lane / 4 + 8 * r, offset / 16 + lane % 4 / 2);
      const uint2 bytes = *reinterpret_cast<const uint2*>(from + at);
      const float2 h[] = {values_over_256<0, 1>(bytes), values_over_256<2, 3>(bytes), values_over_256<4, 5>(bytes),
                          values_over_256<6, 7>(bytes)};
      float d[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] = scale * sums[j] * sqrt_fast(j % 2 ? h[j / 2].y : h[j / 2].x);
      if (offset < mine.limit[r]) *reinterpret_cast<uint2*>(to[r] + offset) = of.quantise(d);
    });
    of.store(result);
  }

 private:
  static constexpr int part_bytes = column_bytes(warp_rows);
  static_assert(tile_n == 2 * panel_columns && tile_parts * part_bytes <= 2 * sizeof(StagedRows));

  static __device__ __forceinline__ std::byte* hidden(const WarpTile& tile, int part) {
    return reinterpret_cast<std::byte*>(tile.staged) + part * part_bytes;
  }
};

}  // namespace

template <class T>
void fp8_linear_forward(Stream stream, Mat<T> out, Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                        Output output) {
  constexpr const char* name = "fp8_linear_forward";
  require_vectors(name, out);
  require_product(name, out.rows, xq, wq, out.cols);
  launch_gemm(name, stream, LinearFp8<e4m3>{out, factor, output == Output::accumulate}, out.cols, as<e4m3>(xq),
              as<e4m3>(wq));
}

template <class T>
void fp8_linear_backward_input(Stream stream, Mat<T> d_x, Mat<const Fp8<T>> gq, Fp8Format format, Mat<const Fp8<T>> w_t,
                               const acc_t<T>* factor, Output output) {
  constexpr const char* name = "fp8_linear_backward_input";
  require_vectors(name, d_x);
  require_product(name, d_x.rows, gq, w_t, d_x.cols);
  require_fp8_sides(name, gq.rows, gq.cols);
  const GemmOptions options{.beta = beta_of(output), .factor = factor};
  with_format(format, [&](auto f) {
    using F = decltype(f);
    gemm<F, e4m3, bf16>(stream, options, Op::none, as<F>(gq), Op::transpose, as<e4m3>(w_t), d_x);
  });
}

template <class T>
std::size_t fp8_linear_backward_weight_workspace(int rows, int cols, int inner) {
  return fp8_weight_gradient_workspace(rows, cols, inner);
}

template <class T>
void fp8_linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, bool transposes, Mat<const Fp8<T>> a,
                                Fp8Format format_a, Mat<const Fp8<T>> b_t, Fp8Format format_b, const acc_t<T>* factor,
                                Output output, Workspace workspace) {
  assert(a.rows == b_t.cols);
  require_fp8_sides("fp8_linear_backward_weight", a.rows, a.cols);
  require_fp8_sides("fp8_linear_backward_weight", b_t.rows, b_t.cols);
  with_format(format_a, [&](auto of_a) {
    with_format(format_b, [&](auto of_b) {
      using A = decltype(of_a);
      using B = decltype(of_b);
      if constexpr (std::is_same_v<A, e4m3> || std::is_same_v<B, e4m3>) {
        fp8_weight_gradient_in_parts<A, B>(stream, d_w, transposes, output, factor, as<A>(a), as<B>(b_t), workspace);
      } else {
        throw std::invalid_argument("fp8_linear_backward_weight: one operand must be e4m3");
      }
    });
  });
}

template <class T>
void fp8_relu2_forward(Stream stream, Mat<Fp8<T>> hq, const Fp8Result<acc_t<T>>& result, Mat<const Fp8<T>> xq,
                       Mat<const Fp8<T>> wq, const acc_t<T>* factor, Mat<T> h) {
  constexpr const char* name = "fp8_relu2_forward";
  assert(!h || !hq || (h.rows == hq.rows && h.cols == hq.cols));
  const int rows = h ? h.rows : hq.rows, cols = h ? h.cols : hq.cols;
  if (h) require_vectors(name, h);
  require_fp8_rows(name, hq);
  require_product(name, rows, xq, wq, cols);
  const auto launch_with = [&](const auto& epilogue) {
    launch_gemm(name, stream, epilogue, cols, as<e4m3>(xq), as<e4m3>(wq));
  };
  if (!h) return launch_with(Relu2Forward{hq, result, factor});
  if (!hq) return launch_with(Relu2ForwardOfBoth<false>{h, hq, result, factor});
  launch_with(Relu2ForwardOfBoth<true>{h, hq, result, factor});
}

template <class T>
void fp8_relu2_backward(Stream stream, Mat<Fp8<T>> dq, const Fp8Result<acc_t<T>>& d_z, Mat<const Fp8<T>> gq,
                        Fp8Format format, Mat<const Fp8<T>> v_t, const acc_t<T>* factor, Mat<const Fp8<T>> hq,
                        const acc_t<T>* scale_h) {
  constexpr const char* name = "fp8_relu2_backward";
  assert(hq.rows == dq.rows && hq.cols == dq.cols);
  require_fp8_rows(name, dq);
  require_fp8_rows(name, hq);
  require_product(name, dq.rows, gq, v_t, dq.cols);
  require_fp8_sides(name, gq.rows, gq.cols);
  with_format(format, [&](auto f) {
    using F = decltype(f);
    const Relu2Backward<F> op{column_map(loaded(as<e4m3>(hq)), warp_rows, panel_columns), dq, d_z, factor, scale_h};
    launch_gemm(name, stream, op, dq.cols, as<F>(gq), as<e4m3>(v_t));
  });
}

template void fp8_linear_forward(Stream, Mat<bf16>, Mat<const fp8>, Mat<const fp8>, const float*, Output);
template void fp8_linear_backward_input(Stream, Mat<bf16>, Mat<const fp8>, Fp8Format, Mat<const fp8>, const float*,
                                        Output);
template std::size_t fp8_linear_backward_weight_workspace<bf16>(int, int, int);
template void fp8_linear_backward_weight<bf16>(Stream, Mat<float>, bool, Mat<const fp8>, Fp8Format, Mat<const fp8>,
                                               Fp8Format, const float*, Output, Workspace);
template void fp8_relu2_forward<bf16>(Stream, Mat<fp8>, const Fp8Result<float>&, Mat<const fp8>, Mat<const fp8>,
                                      const float*, Mat<bf16>);
template void fp8_relu2_backward<bf16>(Stream, Mat<fp8>, const Fp8Result<float>&, Mat<const fp8>, Fp8Format,
                                       Mat<const fp8>, const float*, Mat<const fp8>, const float*);

}  // namespace nanorun::kernels::cuda::hopper
