#include "kernels/fp8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace nanorun::kernels::portable {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// A format by its definition: values[c] belongs to the code c without its sign bit, in ascending order.
struct Format {
  float (*round)(float);
  int exponent_bits, mantissa_bits;
  int finite_codes;  // without the sign bit
  bool saturates;    // otherwise the code after the finite ones is infinity
  std::vector<double> values;

  Format(float (*round)(float), int exponent_bits, int mantissa_bits, int finite_codes, bool saturates)
      : round(round),
        exponent_bits(exponent_bits),
        mantissa_bits(mantissa_bits),
        finite_codes(finite_codes),
        saturates(saturates) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (int code = 0; code <= finite_codes; ++code) {
      const int exponent = code >> mantissa_bits;
      const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
      values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
    }
  }

  /// By search: the nearer neighbour, or the one of even code when both are equally near.
  float reference(float x) const {
    if (std::isnan(x)) return x;
    const double magnitude = std::abs(static_cast<double>(x));
    const auto first = values.begin(), last = first + (saturates ? finite_codes : finite_codes + 1);
    const auto above = std::min(std::lower_bound(first, last, magnitude), last - 1);
    int code = static_cast<int>(above - first);
    if (magnitude < *above) {
      const double to_above = *above - magnitude, to_below = magnitude - values[code - 1];
      if (to_below < to_above || (to_below == to_above && code % 2 == 1)) --code;
    }
    const float rounded = code == finite_codes ? infinity : static_cast<float>(values[code]);
    return std::copysign(rounded, x);
  }
};

const Format e4m3{round_to_e4m3, 4, 3, 0x7f, true};
const Format e5m2{round_to_e5m2, 5, 2, 0x7c, true};
const Format bf16{round_to_bf16, 8, 7, 0x7f80, false};

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Equal bit for bit, or both NaN.
void expect_same(float actual, float expected, float x) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << x;
  } else {
    ASSERT_EQ(bits(actual), bits(expected)) << x << " gives " << actual << ", not " << expected;
  }
}

class Rounding : public testing::TestWithParam<const Format*> {};

TEST_P(Rounding, KeepsEveryRepresentableValue) {
  const Format& format = *GetParam();
  for (int code = 0; code < format.finite_codes; ++code) {
    const auto value = static_cast<float>(format.values[code]);
    expect_same(format.round(value), value, value);
    expect_same(format.round(-value), -value, -value);
  }
  EXPECT_TRUE(std::signbit(format.round(-0.0f)));
  EXPECT_FALSE(std::signbit(format.round(0.0f)));
}

TEST_P(Rounding, MidpointsTieToEvenAndTheirNeighboursDoNot) {
  const Format& format = *GetParam();
  for (int code = 0; code + 1 < format.finite_codes; ++code) {
    const double low = format.values[code], high = format.values[code + 1];
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2) << "the midpoint must be exact in fp32";
    for (const float sign : {1.0f, -1.0f}) {
      const auto even = static_cast<float>(code % 2 == 0 ? low : high);
      expect_same(format.round(sign * middle), sign * even, sign * middle);
      const float below = sign * std::nextafter(middle, 0.0f), above = sign * std::nextafter(middle, infinity);
      expect_same(format.round(below), sign * static_cast<float>(low), below);
      expect_same(format.round(above), sign * static_cast<float>(high), above);
    }
  }
}

TEST_P(Rounding, HandlesTheEndsOfTheRange) {
  const Format& format = *GetParam();
  const auto largest = static_cast<float>(format.values[format.finite_codes - 1]);
  const float overflowed = format.saturates ? largest : infinity;
  for (const float x : {infinity, std::numeric_limits<float>::max()}) {
    expect_same(format.round(x), overflowed, x);
    expect_same(format.round(-x), -overflowed, -x);
  }
  const float denormal = std::numeric_limits<float>::denorm_min();
  expect_same(format.round(denormal), 0.0f, denormal);
  expect_same(format.round(-denormal), -0.0f, -denormal);
  expect_same(format.round(std::nextafter(largest, infinity)), largest, largest);
  for (const std::uint32_t pattern : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    ASSERT_TRUE(std::isnan(format.round(std::bit_cast<float>(pattern)))) << std::hex << pattern;
  }
}

TEST_P(Rounding, EqualsTheSearchOnRandomBitPatterns) {
  const Format& format = *GetParam();
  std::mt19937 generator(1);
  for (int i = 0; i < 500'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
    expect_same(format.round(x), format.reference(x), x);
    // Again with the exponent drawn from the normal and subnormal range of the format.
    const float near = std::ldexp(1 + (generator() >> 9) * 0x1p-23f, static_cast<int>(generator() % 40) - 20);
    expect_same(format.round(near), format.reference(near), near);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Rounding, testing::Values(&e4m3, &e5m2, &bf16), [](const auto& info) {
  return info.index == 0 ? "e4m3" : info.index == 1 ? "e5m2" : "bf16";
});

TEST(Format, HasThePublishedEnds) {
  EXPECT_EQ(e4m3.values[e4m3.finite_codes - 1], 448);
  EXPECT_EQ(e4m3.values[1], 0x1p-9);
  EXPECT_EQ(e5m2.values[e5m2.finite_codes - 1], 57344);
  EXPECT_EQ(e5m2.values[1], 0x1p-16);
}

/// Every element of the scaled vector against the search, in place and out of place.
template <class T>
void check_quantise(void (*quantise)(Vec<T>, Vec<const T>, double), const Format& format, double scale) {
  std::mt19937 generator(2);
  std::vector<T> x(40'003);
  for (T& value : x) value = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
  x[7] = nan, x[8] = infinity, x[9] = T(-0.0);
  std::vector<T> out(x.size(), nan);
  quantise(out, x, scale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float product = static_cast<float>(scale) * static_cast<float>(x[i]);
    expect_same(static_cast<float>(out[i]), format.reference(product), product);
  }
  quantise(x, x, scale);
  for (std::size_t i = 0; i < x.size(); ++i) expect_same(x[i], out[i], out[i]);
}

TEST(Quantise, RoundsEveryScaledElement) {
  for (const double scale : {1.0, 512.0, 0x1p29, 1.7}) {
    check_quantise<float>(quantise_e4m3<float>, e4m3, scale);
    check_quantise<double>(quantise_e4m3<double>, e4m3, scale);
    check_quantise<float>(quantise_e5m2<float>, e5m2, scale);
    check_quantise<double>(quantise_e5m2<double>, e5m2, scale);
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
