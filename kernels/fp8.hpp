#pragma once
// Rounding to 8-bit and 16-bit floating-point formats, value in, value out (round to nearest even, saturating for the
// 8-bit formats; a NaN stays a NaN).
//   e4m3: 4 exponent bits, bias 7, largest 448, smallest subnormal 2^-9, no infinity.
//   e5m2: 5 exponent bits, bias 15, largest 57344, smallest subnormal 2^-16.
//   bf16: the upper half of an IEEE single.

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

float round_to_e4m3(float x);
float round_to_e5m2(float x);
float round_to_bf16(float x);

/// out[i] = round(scale * x[i]), the product formed in fp32; `out` may be `x`.
template <class T>
void quantise_e4m3(Vec<T> out, Vec<const T> x, double scale);
template <class T>
void quantise_e5m2(Vec<T> out, Vec<const T> x, double scale);

}  // namespace nanorun::kernels::portable
