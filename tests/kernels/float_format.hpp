#pragma once
// Slow reference of the 8-bit and 16-bit formats: rounding by search in the table of all values.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace nanorun::kernels::test {

/// A format by its definition: values[c] belongs to the code c without its sign bit, in ascending order.
struct FloatFormat {
  int finite_codes;  // without the sign bit
  bool saturates;    // otherwise the code after the finite ones is infinity
  std::vector<double> values;

  enum class Beyond { saturates, is_infinite };
  FloatFormat(int exponent_bits, int mantissa_bits, int finite_codes, Beyond beyond)
      : finite_codes(finite_codes), saturates(beyond == Beyond::saturates) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (int code = 0; code <= finite_codes; ++code) {
      const int exponent = code >> mantissa_bits;
      const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
      values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
    }
  }

  /// The value of a code of 8 bits; NaN where it is infinite, too.
  float value(std::uint8_t code) const {
    const int magnitude = code & 0x7f;
    const double value = magnitude < finite_codes ? values[magnitude] : std::numeric_limits<double>::quiet_NaN();
    return std::copysign(static_cast<float>(value), code & 0x80 ? -1.0f : 1.0f);
  }

  /// By search: the nearer neighbour, or the one of even code when both are equally near.
  float round(float x) const {
    if (std::isnan(x)) return x;
    const double magnitude = std::abs(static_cast<double>(x));
    const auto first = values.begin(), last = first + (saturates ? finite_codes : finite_codes + 1);
    const auto above = std::min(std::lower_bound(first, last, magnitude), last - 1);
    int code = static_cast<int>(above - first);
    if (magnitude < *above) {
      const double to_above = *above - magnitude, to_below = magnitude - values[code - 1];
      if (to_below < to_above || (to_below == to_above && code % 2 == 1)) --code;
    }
    const float rounded =
        code == finite_codes ? std::numeric_limits<float>::infinity() : static_cast<float>(values[code]);
    return std::copysign(rounded, x);
  }
};

inline const FloatFormat e4m3{4, 3, 0x7f, FloatFormat::Beyond::saturates};
inline const FloatFormat e5m2{5, 2, 0x7c, FloatFormat::Beyond::saturates};
inline const FloatFormat bf16{8, 7, 0x7f80, FloatFormat::Beyond::is_infinite};

}  // namespace nanorun::kernels::test
