#pragma once
// Branch-free exp, tanh and erf, which compilers vectorise in `#pragma omp simd` loops. float: polynomials with a
// relative error below 2e-7 (exp) and 3e-7 (tanh), or an absolute one below 6e-7 (erf). double: the standard library.
// NaN gives NaN.

#include <Kokkos_Macros.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace nanorun::kernels {

/// e^x. float: 0 below -87.7 (also at -infinity), infinity above 88.4.
KOKKOS_INLINE_FUNCTION float fast_exp(float x) {
  // x = n ln2 + r with |r| <= ln2/2. Adding 1.5 2^23 rounds to an integer and leaves n in the low bits; the clamp keeps
  // n in [-127, 128], where the exponent field of 2^n reads 0 and infinity at the ends.
  constexpr float round_to_integer = 12582912.0f;
  constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  x = std::min(std::max(x, -88.0f), 89.0f);
  const float shifted = x * log2_e + round_to_integer;
  const float n = shifted - round_to_integer;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float q = 1.3814632e-3f;
  q = q * r + 8.3687072e-3f;
  q = q * r + 4.1668386e-2f;
  q = q * r + 1.6666521e-1f;
  q = q * r + 4.9999993e-1f;
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  return (r * r * q + r + 1.0f) * power;
}

KOKKOS_INLINE_FUNCTION double fast_exp(double x) { return std::exp(x); }

/// tanh x.
KOKKOS_INLINE_FUNCTION float fast_tanh(float x) {
  const float magnitude = std::abs(x);
  const float z = x * x;
  float q = -5.71704e-3f;
  q = q * z + 2.065059e-2f;
  q = q * z - 5.37435e-2f;
  q = q * z + 1.3331491e-1f;
  q = q * z - 3.3333284e-1f;
  const float small = q * z * x + x;
  const float large = std::copysign(1.0f - 2.0f / (fast_exp(2.0f * magnitude) + 1.0f), x);
  return magnitude < 0.625f ? small : large;
}

KOKKOS_INLINE_FUNCTION double fast_tanh(double x) { return std::tanh(x); }

/// erf x (Abramowitz and Stegun 1964, 7.1.26).
KOKKOS_INLINE_FUNCTION float fast_erf(float x) {
  const float t = 1.0f / (0.3275911f * std::abs(x) + 1.0f);
  float q = 1.061405429f;
  q = q * t - 1.453152027f;
  q = q * t + 1.421413741f;
  q = q * t - 0.284496736f;
  q = q * t + 0.254829592f;
  return std::copysign(1.0f - q * t * fast_exp(-x * x), x);
}

KOKKOS_INLINE_FUNCTION double fast_erf(double x) { return std::erf(x); }

}  // namespace nanorun::kernels
