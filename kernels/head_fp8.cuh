#pragma once
// Shared by the kernels of the fp8 head and MLP: conversion to e4m3 and e5m2, transposition of bytes.

#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/types.hpp"

namespace nanorun::kernels::cuda {

/// Four floats as F = e4m3 or e5m2, saturating; NaN stays NaN.
template <class F>
__device__ std::uint32_t pack_fp8(const float* x) {
  constexpr __nv_fp8_interpretation_t format = std::is_same_v<F, e4m3> ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, format);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, format);
  return low | high << 16;
}

/// Transposes the 4x4 bytes of four words.
__device__ inline void transpose_4x4(const std::uint32_t in[4], std::uint32_t out[4]) {
  const std::uint32_t low01 = __byte_perm(in[0], in[1], 0x5140), low23 = __byte_perm(in[2], in[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(in[0], in[1], 0x7362), high23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low01, low23, 0x5410);
  out[1] = __byte_perm(low01, low23, 0x7632);
  out[2] = __byte_perm(high01, high23, 0x5410);
  out[3] = __byte_perm(high01, high23, 0x7632);
}

/// The four columns of a 16 x 4 block of bytes.
struct ByteColumns {
  uint4 column[4];
};
__device__ inline ByteColumns transpose_16x4(const std::uint32_t rows[16]) {
  std::uint32_t turned[4][4];  // [four rows][column]
#pragma unroll
  for (int k = 0; k < 4; ++k) transpose_4x4(rows + 4 * k, turned[k]);
  ByteColumns out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.column[i] = {turned[0][i], turned[1][i], turned[2][i], turned[3][i]};
  return out;
}

/// Stores the columns as four rows of x, `ld` bytes apart. L2 evicts them first.
__device__ inline void store_byte_columns(void* x, std::size_t ld, const ByteColumns& columns) {
#pragma unroll
  for (int i = 0; i < 4; ++i) __stcs(reinterpret_cast<uint4*>(static_cast<std::byte*>(x) + i * ld), columns.column[i]);
}

}  // namespace nanorun::kernels::cuda
