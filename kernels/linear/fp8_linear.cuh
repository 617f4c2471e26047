#pragma once
// Fused GEMMs of operands in 8 bits that fp8_quantise() has made, and their epilogues.

#include <cassert>

#include "kernels/device/magnitude.cuh"
#include "kernels/linear/fp8_epilogues.cuh"
#include "kernels/linear/fp8_linear.hpp"

namespace nanorun::kernels::cuda::fp8_ops {

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
template <class Gemm>
struct Relu2Forward {
  using Operand = e4m3;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = false;

  Mat<fp8> hq;
  Fp8Result<float> result;
  const float* factor;

  __device__ void begin(typename Gemm::WarpTile&) const {}

  __device__ __forceinline__ void epilogue(const typename Gemm::WarpTile& tile, const GemmFragment& fragment) const {
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
template <class Gemm, bool keeps_quantised>
struct Relu2ForwardOfBoth {
  using Operand = e4m3;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = false;

  Mat<bf16> h;
  Mat<fp8> hq;
  Fp8Result<float> result;
  const float* factor;

  __device__ void begin(typename Gemm::WarpTile&) const {}

  __device__ __forceinline__ void epilogue(const typename Gemm::WarpTile& tile, const GemmFragment& fragment) const {
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
    if (threadIdx.x % warp_size == 0) raise(result.maximum, in_warp);
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

template <class Gemm, class F>
struct Relu2Backward {
  using Operand = F;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;
  static constexpr bool stages_rows = true;

  typename Gemm::Bytes hq;
  Mat<fp8> dq;
  Fp8Result<float> result;
  const float *factor, *scale_h;

  __device__ __forceinline__ void begin(typename Gemm::WarpTile& tile) const { begin_bytes(tile, hq); }

  __device__ __forceinline__ void epilogue(typename Gemm::WarpTile& tile, const GemmFragment& fragment) const {
    const float scale = 32 * *factor * sqrtf(*scale_h);  // 2 and the root of 256
    ResultOf<F> of(result);
    const Stretches mine(tile, dq);
    fp8* const to[] = {dq.row(mine.row[0]) + mine.at, dq.row(mine.row[1]) + mine.at};
    wait_bytes(tile);
    Stretches::for_each(fragment, [&](int r, int offset, const float(&sums)[8]) {
      const uint2 bytes = bytes_at(tile, hq, r, offset);
      const float2 h[] = {values_over_256<0, 1>(bytes), values_over_256<2, 3>(bytes), values_over_256<4, 5>(bytes),
                          values_over_256<6, 7>(bytes)};
      float d[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] = scale * sums[j] * sqrt_fast(j % 2 ? h[j / 2].y : h[j / 2].x);
      if (offset < mine.limit[r]) *reinterpret_cast<uint2*>(to[r] + offset) = of.quantise(d);
    });
    of.store(result);
  }
};

template <class Gemm>
void linear_forward(Stream stream, Mat<bf16> out, Mat<const fp8> xq, Mat<const fp8> wq, const float* factor,
                    Output output) {
  constexpr const char* name = "fp8_linear_forward";
  require_vectors(name, out);
  require_product(name, out.rows, xq, wq, out.cols);
  Gemm::launch(name, stream, LinearFp8<Gemm, e4m3>{out, factor, output == Output::accumulate}, out.cols, as<e4m3>(xq),
               as<e4m3>(wq));
}

template <class Gemm>
void relu2_forward(Stream stream, Mat<fp8> hq, const Fp8Result<float>& result, Mat<const fp8> xq, Mat<const fp8> wq,
                   const float* factor, Mat<bf16> h) {
  constexpr const char* name = "fp8_relu2_forward";
  assert(!h || !hq || (h.rows == hq.rows && h.cols == hq.cols));
  const int rows = h ? h.rows : hq.rows, cols = h ? h.cols : hq.cols;
  if (h) require_vectors(name, h);
  require_fp8_rows(name, hq);
  require_product(name, rows, xq, wq, cols);
  const auto launch_with = [&](const auto& epilogue) {
    Gemm::launch(name, stream, epilogue, cols, as<e4m3>(xq), as<e4m3>(wq));
  };
  if (!h) return launch_with(Relu2Forward<Gemm>{hq, result, factor});
  if (!hq) return launch_with(Relu2ForwardOfBoth<Gemm, false>{h, hq, result, factor});
  launch_with(Relu2ForwardOfBoth<Gemm, true>{h, hq, result, factor});
}

template <class Gemm>
void relu2_backward(Stream stream, Mat<fp8> dq, const Fp8Result<float>& d_z, Mat<const fp8> gq, Fp8Format format,
                    Mat<const fp8> v_t, const float* factor, Mat<const fp8> hq, const float* scale_h) {
  constexpr const char* name = "fp8_relu2_backward";
  assert(hq.rows == dq.rows && hq.cols == dq.cols);
  require_fp8_rows(name, dq);
  require_fp8_rows(name, hq);
  require_product(name, dq.rows, gq, v_t, dq.cols);
  require_fp8_sides(name, gq.rows, gq.cols);
  with_format(format, [&](auto f) {
    using F = decltype(f);
    const Relu2Backward<Gemm, F> op{Gemm::bytes(as<e4m3>(hq)), dq, d_z, factor, scale_h};
    Gemm::launch(name, stream, op, dq.cols, as<F>(gq), as<e4m3>(v_t));
  });
}

}  // namespace nanorun::kernels::cuda::fp8_ops
