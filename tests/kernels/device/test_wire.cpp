#include "kernels/device/wire.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr auto poison = std::byte(0x5a);

/// The value of the code at `i` by the definition of its format; an e5m2 code's still has the scale.
template <class A>
double value_of(const test::Vector<std::byte>& encoded, std::size_t i, WireFormat format) {
  if (format == WireFormat::fp32) {
    A value;
    std::memcpy(&value, &encoded[i * sizeof value], sizeof value);
    return value;
  }
  const test::FloatFormat& table = format == WireFormat::bf16 ? test::bf16 : test::e5m2;
  unsigned code = 0;
  const std::size_t bytes = format == WireFormat::bf16 ? 2 : 1;
  std::memcpy(&code, &encoded[i * bytes], bytes);
  const unsigned sign = 1u << (8 * bytes - 1), magnitude = code & (sign - 1);
  const auto largest = static_cast<unsigned>(table.finite_codes);
  const double value = magnitude < largest ? table.values[magnitude] : magnitude == largest ? infinity : nan;
  return std::copysign(value, code & sign ? -1 : 1);
}

/// What the value of x's code shall be.
template <class A>
double expected_value(A x, const Wire& wire) {
  if (wire.format == WireFormat::fp32) return x;
  if (wire.format == WireFormat::bf16) return test::bf16.round(static_cast<float>(x));
  const float product = static_cast<float>(wire.scale) * static_cast<float>(x);
  return std::isinf(product) ? product : test::e5m2.round(product);
}

void expect_same(double got, double want, std::size_t i) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << i;
  } else {
    ASSERT_EQ(got, want) << i;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << i;
  }
}

/// Random bit patterns, values near the middle of the range, and the ends of the range.
template <class A>
test::Vector<A> all_sorts(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  test::Vector<A> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::uint32_t>(generator());
    x[i] =
        i % 2 == 0 ? std::bit_cast<float>(bits) : std::ldexp(static_cast<float>(bits), -40 - static_cast<int>(i % 30));
    if (i % 4 == 1) x[i] = -x[i];
  }
  const float ends[] = {nan, -nan, infinity, -infinity, 0.0f, -0.0f, 3e38f, -3e38f, 57344, 65536, 1e-45f};
  for (std::size_t i = 0; i < std::min(std::size(ends), n); ++i) x[i] = ends[i];
  return x;
}

const Wire wires[] = {
    {}, {WireFormat::bf16}, {WireFormat::e5m2, 1}, {WireFormat::e5m2, 65536}, {WireFormat::e5m2, 1.7}};

template <class A>
void check_encode() {
  for (const Wire& wire : wires) {
    const std::size_t bytes = wire_bytes<A>(wire.format);
    for (const std::size_t n : {0, 1, 7, 40'003}) {
      const test::Vector<A> x = all_sorts<A>(n + 1, 1);
      test::Vector<std::byte> out((n + 2) * bytes, poison);
      // Beside the first element, in the tensor and on the wire.
      encode<A>({}, out.data() + bytes, std::span(x).subspan(1), wire);
      for (std::size_t i = 0; i < n; ++i) {
        expect_same(value_of<A>(out, i + 1, wire.format), expected_value(x[i + 1], wire), i);
      }
      for (std::size_t b = 0; b < bytes; ++b) {
        ASSERT_EQ(out[b], poison);
        ASSERT_EQ(out[(n + 1) * bytes + b], poison);
      }
    }
  }
}

TEST(Wire, EncodesToTheNearestValueOfTheFormat) {
  check_encode<float>();
  check_encode<double>();
}

TEST(Wire, E5m2SaturatesFiniteValuesAlone) {
  const test::Vector<float> x = {1, -1, 1e30f, infinity, -infinity, nan};
  test::Vector<std::byte> out(x.size());
  encode<float>({}, out.data(), x, {WireFormat::e5m2, 65536});
  test::Vector<float> sum(x.size(), 0);
  add_decoded<float>({}, sum, out.data(), 1, 0, {WireFormat::e5m2, 65536});
  EXPECT_EQ(sum[0], 0.875f);
  EXPECT_EQ(sum[1], -0.875f);
  EXPECT_EQ(sum[2], 0.875f);
  EXPECT_EQ(sum[3], infinity);
  EXPECT_EQ(sum[4], -infinity);
  EXPECT_TRUE(std::isnan(sum[5]));
}

/// Every code, decoded.
TEST(Wire, DecodesEveryCode) {
  for (const WireFormat format : {WireFormat::bf16, WireFormat::e5m2}) {
    const std::size_t bytes = wire_bytes<float>(format), codes = std::size_t{1} << (8 * bytes);
    test::Vector<std::byte> in(codes * bytes);
    for (std::size_t code = 0; code < codes; ++code) std::memcpy(&in[code * bytes], &code, bytes);
    // -0 is the neutral element of the sum.
    test::Vector<float> sum(codes, -0.0f);
    add_decoded<float>({}, sum, in.data(), 1, 0, {format, 4});
    for (std::size_t code = 0; code < codes; ++code) {
      expect_same(sum[code], value_of<float>(in, code, format) / (format == WireFormat::e5m2 ? 4 : 1), code);
    }
  }
}

/// Several tensors with a gap between them, against a sum element by element.
template <class A>
void check_sum() {
  for (const Wire& wire : wires) {
    const std::size_t n = 20'001, bytes = wire_bytes<A>(wire.format), stride = n * bytes + 3 * bytes;
    const int count = 3;
    test::Vector<std::byte> in(count * stride, poison);
    test::Vector<A> sum = test::convert<A>(test::random_values(n + 2, 9));
    test::Vector<A> want = sum;
    for (int k = 0; k < count; ++k) {
      const test::Vector<A> x = test::convert<A>(test::random_values(n, k));
      encode<A>({}, in.data() + k * stride, x, wire);
      const float inverse = wire.format == WireFormat::e5m2 ? static_cast<float>(1 / wire.scale) : 1;
      for (std::size_t i = 0; i < n; ++i) {
        const A value = expected_value(x[i], wire);
        want[i + 1] += wire.format == WireFormat::fp32 ? value : static_cast<float>(value) * inverse;
      }
    }
    add_decoded<A>({}, std::span(sum).subspan(1, n), in.data(), count, stride, wire);
    EXPECT_EQ(sum.front(), want.front());
    EXPECT_EQ(sum.back(), want.back());
    // The compiler may fuse the product with 1 / scale and the addition.
    const double tolerance = wire.scale == 1.7 ? 1e-6 : 0;
    for (std::size_t i = 1; i <= n; ++i) ASSERT_NEAR(sum[i], want[i], tolerance) << i;
  }
}

/// Rows in any order; each once.
TEST(Wire, RowsAreTakenAndAdded) {
  constexpr int rows = 6, cols = 5;
  const test::Vector<std::int32_t> list = {4, 0, 3};
  for (const Wire& wire : {Wire{}, Wire{WireFormat::bf16}, Wire{WireFormat::e5m2, 16}}) {
    test::Vector<float> table(rows * cols), sum(rows * cols, 0.5f);
    for (int i = 0; i < rows * cols; ++i) table[i] = static_cast<float>(i + 1) / 3;
    const test::Vector<float> before = table;
    const std::size_t row_bytes = cols * wire_bytes<float>(wire.format);
    test::Vector<std::byte> codes(list.size() * row_bytes), row(row_bytes);
    take_rows<float>({}, codes.data(), Mat<float>(table.data(), rows, cols), list, wire);
    add_decoded_rows<float>({}, Mat<float>(sum.data(), rows, cols), list, codes.data(), wire);
    for (int t = 0; t < rows; ++t) {
      const bool taken = std::find(list.begin(), list.end(), t) != list.end();
      test::Vector<float> want(cols, 0.5f);
      encode<float>({}, row.data(), Vec<const float>(before).subspan(t * cols, cols), wire);
      if (taken) add_decoded<float>({}, want, row.data(), 1, 0, wire);
      for (int j = 0; j < cols; ++j) {
        EXPECT_EQ(table[t * cols + j], taken ? 0 : before[t * cols + j]);
        EXPECT_EQ(sum[t * cols + j], want[j]);
      }
    }
  }
}

TEST(Wire, AddsTensorsInOrder) {
  check_sum<float>();
  check_sum<double>();
}

}  // namespace
}  // namespace nanorun::kernels::portable
