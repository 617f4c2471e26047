#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "kernels/device/fill.hpp"
#include "kernels/device/wire.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Scales whose products and quotients are exact, so that both implementations agree bit for bit.
const Wire wires[] = {{}, {WireFormat::bf16}, {WireFormat::e5m2, 1}, {WireFormat::e5m2, 65536}};

constexpr std::size_t sizes[] = {1, 7, 1000, 3'000'001};

/// Random bit patterns and values in the range of the formats, the ends of the range first.
test::Vector<float> all_sorts(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  test::Vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::uint32_t>(generator());
    const float near = std::ldexp(static_cast<float>(bits), -40 - static_cast<int>(i % 30));
    x[i] = i % 3 == 0 ? std::bit_cast<float>(bits) : i % 3 == 1 ? near : -near;
  }
  const float ends[] = {0, nan, infinity, -infinity, -0.0f, 3e38f, -3e38f, 57344, 65536, 1e-45f};
  std::copy_n(ends, std::min(std::size(ends), n), x.begin());
  return x;
}

/// Where portable's code is a NaN, any NaN will do.
bool is_nan_code(const std::byte* code, WireFormat format) {
  if (format == WireFormat::e5m2) return (std::to_integer<unsigned>(*code) & 0x7Fu) > 0x7Cu;
  std::uint32_t bits = 0;
  const std::size_t bytes = wire_bytes<float>(format);
  std::memcpy(reinterpret_cast<std::byte*>(&bits) + 4 - bytes, code, bytes);
  return std::isnan(std::bit_cast<float>(bits));
}

void compare_encode(const Wire& wire, std::size_t n, std::size_t first) {
  const std::size_t bytes = wire_bytes<float>(wire.format);
  const test::Vector<float> x = all_sorts(n + first, 1);
  const DeviceVector<float> device_x(x);
  test::Vector<std::byte> want((n + first + 1) * bytes, std::byte(0xFF));
  const DeviceVector<std::byte> out(want.size());
  portable::encode<float>({}, want.data() + first * bytes, std::span(x).subspan(first), wire);
  cuda::encode<float>({}, out.data() + first * bytes, {device_x.data() + first, n}, wire);
  const test::Vector<std::byte> got = out.host();
  for (std::size_t i = 0; i <= n + first; ++i) {
    const bool inside = i >= first && i < first + n;
    const bool same = std::memcmp(&got[i * bytes], &want[i * bytes], bytes) == 0;
    const bool both_nan =
        inside && is_nan_code(&got[i * bytes], wire.format) && is_nan_code(&want[i * bytes], wire.format);
    ASSERT_TRUE(same || both_nan) << "element " << i << " of " << n << ", format " << static_cast<int>(wire.format);
  }
}

TEST(CudaWire, EncodesAsPortableDoes) {
  SKIP_WITHOUT_DEVICE();
  for (const Wire& wire : wires) {
    for (const std::size_t n : sizes) {
      for (const std::size_t first : {0, 1}) compare_encode(wire, n, first);
    }
  }
}

void compare_sum(const Wire& wire, std::size_t n, std::size_t first, std::size_t gap) {
  const int count = 7;
  const std::size_t bytes = wire_bytes<float>(wire.format), stride = (n + gap + 15) / 16 * 16 * bytes + gap * bytes;
  test::Vector<std::byte> in(count * stride);
  for (int k = 0; k < count; ++k) {
    portable::encode<float>({}, in.data() + k * stride, all_sorts(n, k), wire);
  }
  test::Vector<float> sum(n + first + 1, 0.25f);
  const DeviceVector<std::byte> device_in(in);
  const DeviceVector<float> device_sum(sum);
  portable::add_decoded<float>({}, std::span(sum).subspan(first, n), in.data(), count, stride, wire);
  cuda::add_decoded<float>({}, {device_sum.data() + first, n}, device_in.data(), count, stride, wire);
  const test::Vector<float> got = device_sum.host();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_TRUE(got[i] == sum[i] || (std::isnan(got[i]) && std::isnan(sum[i])))
        << "element " << i << " of " << n << ", format " << static_cast<int>(wire.format) << ": " << got[i]
        << " instead of " << sum[i];
  }
}

TEST(CudaWire, AddsAsPortableDoes) {
  SKIP_WITHOUT_DEVICE();
  for (const Wire& wire : wires) {
    for (const std::size_t n : sizes) {
      for (const std::size_t first : {0, 1}) {
        for (const std::size_t gap : {0, 1}) compare_sum(wire, n, first, gap);
      }
    }
  }
}

test::Vector<bf16> rounded(const test::Vector<float>& values) {
  test::Vector<bf16> result;
  for (const float value : values) result.push_back(test::from_float<bf16>(value));
  return result;
}

/// Gradients in bf16: the messages are those of the same values in fp32, in bf16 where the wire changes nothing, and
/// the sum is that in fp32, rounded.
void compare_bf16(const Wire& wire, std::size_t n, std::size_t first) {
  const int count = 3;
  const Wire on_host{wire.format == WireFormat::fp32 ? WireFormat::bf16 : wire.format, wire.scale};
  const std::size_t bytes = wire_bytes<bf16>(wire.format), stride = (n + 15) / 16 * 16 * bytes;
  ASSERT_EQ(bytes, wire_bytes<float>(on_host.format));
  test::Vector<std::byte> messages(count * stride, std::byte(0xFF));
  const DeviceVector<std::byte> device_messages(messages.size());
  for (int k = 0; k < count; ++k) {
    test::Vector<float> x = all_sorts(n + first, k);
    const DeviceVector<bf16> device_x(rounded(x));
    portable::round_as_bf16<float>({}, x);
    portable::encode<float>({}, messages.data() + k * stride, std::span(x).subspan(first), on_host);
    cuda::encode<bf16>({}, device_messages.data() + k * stride, {device_x.data() + first, n}, wire);
  }
  const test::Vector<std::byte> encoded = device_messages.host();
  for (std::size_t i = 0; i < n; ++i) {
    const bool same = std::memcmp(&encoded[i * bytes], &messages[i * bytes], bytes) == 0;
    ASSERT_TRUE(same || is_nan_code(&messages[i * bytes], on_host.format)) << i;
  }
  test::Vector<float> sum(n + first + 1, 0.25f);
  const DeviceVector<bf16> device_sum(rounded(sum));
  portable::add_decoded<float>({}, std::span(sum).subspan(first, n), messages.data(), count, stride, on_host);
  portable::round_as_bf16<float>({}, sum);
  cuda::add_decoded<bf16>({}, {device_sum.data() + first, n}, device_messages.data(), count, stride, wire);
  const test::Vector<bf16> got = device_sum.host();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float value = test::to_float(got[i]);
    ASSERT_TRUE(value == sum[i] || (std::isnan(value) && std::isnan(sum[i]))) << i << ": " << value << ", " << sum[i];
  }
}

TEST(CudaWire, GradientsInBf16TravelAsTheSameValuesInFp32) {
  SKIP_WITHOUT_DEVICE();
  for (const Wire& wire : wires) {
    for (const std::size_t n : sizes) {
      for (const std::size_t first : {0, 1}) compare_bf16(wire, n, first);
    }
  }
}

void compare_rows(const Wire& wire, int rows, int cols) {
  test::Vector<float> table = all_sorts(static_cast<std::size_t>(rows) * cols, 3), sum(table.size(), 0.25f);
  const DeviceVector<float> device_table(table), device_sum(sum);
  test::Vector<std::int32_t> list;
  for (int row = rows - 1; row >= 0; row -= 3) list.push_back(row);
  const DeviceVector<std::int32_t> device_list(list);
  test::Vector<std::byte> codes(list.size() * cols * wire_bytes<float>(wire.format));
  const DeviceVector<std::byte> device_codes(codes.size());
  const Vec<const std::int32_t> on_device(device_list.data(), list.size());
  portable::take_rows<float>({}, codes.data(), Mat<float>(table.data(), rows, cols), list, wire);
  portable::add_decoded_rows<float>({}, Mat<float>(sum.data(), rows, cols), list, codes.data(), wire);
  cuda::take_rows<float>({}, device_codes.data(), Mat<float>(device_table.data(), rows, cols), on_device, wire);
  cuda::add_decoded_rows<float>({}, Mat<float>(device_sum.data(), rows, cols), on_device, device_codes.data(), wire);
  const test::Vector<float> left = device_table.host(), got = device_sum.host();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i] == sum[i] || (std::isnan(got[i]) && std::isnan(sum[i]))) << "element " << i << ": " << got[i];
    ASSERT_TRUE(left[i] == table[i] || (std::isnan(left[i]) && std::isnan(table[i]))) << "element " << i;
  }
}

TEST(CudaWire, RowsAreTakenAndAddedAsPortableDoes) {
  SKIP_WITHOUT_DEVICE();
  for (const Wire& wire : wires) {
    for (const auto& [rows, cols] : {std::pair(1, 1), {10, 7}, {40, 8}, {1000, 768}, {30, 4100}}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << cols << " columns");
      compare_rows(wire, rows, cols);
    }
  }
}

TEST(CudaWire, NanAndInfinityArrive) {
  SKIP_WITHOUT_DEVICE();
  for (const Wire& wire : wires) {
    const DeviceVector<float> x(test::Vector<float>{nan, infinity, -infinity, 1});
    const DeviceVector<std::byte> wired(4 * wire_bytes<float>(wire.format));
    const DeviceVector<float> sum(test::Vector<float>(4, 0));
    cuda::encode<float>({}, wired.data(), {x.data(), 4}, wire);
    cuda::add_decoded<float>({}, {sum.data(), 4}, wired.data(), 1, 0, wire);
    const test::Vector<float> got = sum.host();
    EXPECT_TRUE(std::isnan(got[0]));
    EXPECT_EQ(got[1], infinity);
    EXPECT_EQ(got[2], -infinity);
    EXPECT_EQ(got[3], wire.scale == 65536 ? 0.875f : 1.0f);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda
