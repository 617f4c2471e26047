#include "kernels/device/fp8.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/float_format.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// A function under test and the format that it shall round to.
struct Case {
  const char* name;
  float (*round)(float);
  const test::FloatFormat* format;
};

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Equal bit for bit, or both NaN.
void expect_same(float actual, float expected, float x) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << x;
  } else {
    ASSERT_EQ(bits(actual), bits(expected)) << x << " gives " << actual << ", not " << expected;
  }
}

class Rounding : public testing::TestWithParam<Case> {};

TEST_P(Rounding, KeepsEveryRepresentableValue) {
  const auto round = GetParam().round;
  const test::FloatFormat& format = *GetParam().format;
  for (int code = 0; code < format.finite_codes; ++code) {
    const auto value = static_cast<float>(format.values[code]);
    expect_same(round(value), value, value);
    expect_same(round(-value), -value, -value);
  }
  EXPECT_TRUE(std::signbit(round(-0.0f)));
  EXPECT_FALSE(std::signbit(round(0.0f)));
}

TEST_P(Rounding, MidpointsTieToEvenAndTheirNeighboursDoNot) {
  const auto round = GetParam().round;
  const test::FloatFormat& format = *GetParam().format;
  for (int code = 0; code + 1 < format.finite_codes; ++code) {
    const double low = format.values[code], high = format.values[code + 1];
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2) << "the midpoint must be exact in fp32";
    for (const float sign : {1.0f, -1.0f}) {
      const auto even = static_cast<float>(code % 2 == 0 ? low : high);
      expect_same(round(sign * middle), sign * even, sign * middle);
      const float below = sign * std::nextafter(middle, 0.0f), above = sign * std::nextafter(middle, infinity);
      expect_same(round(below), sign * static_cast<float>(low), below);
      expect_same(round(above), sign * static_cast<float>(high), above);
    }
  }
}

TEST_P(Rounding, HandlesTheEndsOfTheRange) {
  const auto round = GetParam().round;
  const test::FloatFormat& format = *GetParam().format;
  const auto largest = static_cast<float>(format.values[format.finite_codes - 1]);
  const float overflowed = format.saturates ? largest : infinity;
  for (const float x : {infinity, std::numeric_limits<float>::max()}) {
    expect_same(round(x), overflowed, x);
    expect_same(round(-x), -overflowed, -x);
  }
  const float denormal = std::numeric_limits<float>::denorm_min();
  expect_same(round(denormal), 0.0f, denormal);
  expect_same(round(-denormal), -0.0f, -denormal);
  expect_same(round(std::nextafter(largest, infinity)), largest, largest);
  for (const std::uint32_t pattern : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    ASSERT_TRUE(std::isnan(round(std::bit_cast<float>(pattern)))) << std::hex << pattern;
  }
}

TEST_P(Rounding, EqualsTheSearchOnRandomBitPatterns) {
  const auto round = GetParam().round;
  const test::FloatFormat& format = *GetParam().format;
  std::mt19937 generator(1);
  for (int i = 0; i < 500'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
    expect_same(round(x), format.round(x), x);
    // Again with the exponent drawn from the normal and subnormal range of the format.
    const float near = std::ldexp(1 + (generator() >> 9) * 0x1p-23f, static_cast<int>(generator() % 40) - 20);
    expect_same(round(near), format.round(near), near);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Rounding,
                         testing::Values(Case{"e4m3", round_to_e4m3, &test::e4m3},
                                         Case{"e5m2", round_to_e5m2, &test::e5m2},
                                         Case{"bf16", round_to_bf16, &test::bf16}),
                         [](const auto& info) { return info.param.name; });

TEST(Format, HasThePublishedEnds) {
  EXPECT_EQ(test::e4m3.values[test::e4m3.finite_codes - 1], 448);
  EXPECT_EQ(test::e4m3.values[1], 0x1p-9);
  EXPECT_EQ(test::e5m2.values[test::e5m2.finite_codes - 1], 57344);
  EXPECT_EQ(test::e5m2.values[1], 0x1p-16);
}

/// Every element of the scaled vector against the search, in place and out of place.
template <class T>
void check_quantise(void (*quantise)(Vec<T>, Vec<const T>, double), const test::FloatFormat& format, double scale) {
  std::mt19937 generator(2);
  test::Vector<T> x(40'003);
  for (T& value : x) value = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
  x[7] = nan;
  x[8] = infinity;
  x[9] = T(-0.0);
  test::Vector<T> out(x.size(), nan);
  quantise(out, x, scale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float product = static_cast<float>(scale) * static_cast<float>(x[i]);
    expect_same(static_cast<float>(out[i]), format.round(product), product);
  }
  quantise(x, x, scale);
  for (std::size_t i = 0; i < x.size(); ++i) expect_same(x[i], out[i], out[i]);
}

TEST(Quantise, RoundsEveryScaledElement) {
  for (const double scale : {1.0, 512.0, 0x1p29, 1.7}) {
    check_quantise<float>(quantise_e4m3<float>, test::e4m3, scale);
    check_quantise<double>(quantise_e4m3<double>, test::e4m3, scale);
    check_quantise<float>(quantise_e5m2<float>, test::e5m2, scale);
    check_quantise<double>(quantise_e5m2<double>, test::e5m2, scale);
  }
}

}  // namespace
}  // namespace nanorun::kernels::portable
