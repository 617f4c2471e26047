#pragma once
// Rounding to 8-bit floating-point formats (Micikevicius et al. 2022, arXiv:2209.05433): float in, float out. To
// nearest even, saturating; NaN stays NaN.
//   e4m3: 4 exponent bits, bias 7, largest 448, smallest subnormal 2^-9, no infinity.
//   e5m2: 5 exponent bits, bias 15, largest 57344, smallest subnormal 2^-16.
// The scalar functions are branch-free and inline, so that loops over them vectorise.

#include <Kokkos_Macros.hpp>

#include <bit>
#include <cmath>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// Nearest value with `mantissa_bits` after the leading one, at most `max_value` in magnitude. Below 2^min_exponent the
/// spacing is that of the subnormals.
template <int mantissa_bits, int min_exponent>
KOKKOS_INLINE_FUNCTION float round_to_minifloat(float x, float max_value) {
  const float magnitude = std::abs(x) > max_value ? max_value : std::abs(x);
  constexpr std::uint32_t exponent_mask = 0x7f800000u;
  constexpr std::uint32_t min_normal = static_cast<std::uint32_t>(127 + min_exponent) << 23;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(magnitude) & exponent_mask;
  // A sum with a power of two that is 23 - mantissa_bits binades above x has the spacing of the format.
  constexpr std::uint32_t binades = 23u - mantissa_bits;
  const float shift = std::bit_cast<float>((exponent > min_normal ? exponent : min_normal) + (binades << 23));
  return std::copysign((magnitude + shift) - shift, x);
}

KOKKOS_INLINE_FUNCTION float round_to_e4m3(float x) { return round_to_minifloat<3, -6>(x, 448.0f); }
KOKKOS_INLINE_FUNCTION float round_to_e5m2(float x) { return round_to_minifloat<2, -14>(x, 57344.0f); }

/// out[i] = round(scale * x[i]), multiplied in fp32; `out` may be `x`.
template <class T>
void quantise_e4m3(Vec<T> out, Vec<const T> x, double scale);
template <class T>
void quantise_e5m2(Vec<T> out, Vec<const T> x, double scale);

}  // namespace nanorun::kernels::portable
