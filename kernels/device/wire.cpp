#include "kernels/device/wire.hpp"

#include "kernels/device/fp8.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

// A codec for each format; Code is the encoded element.

template <class A>
struct Plain {
  using Code = A;
  KOKKOS_FUNCTION A encode(A x) const { return x; }
  KOKKOS_FUNCTION A decode(A code) const { return code; }
};

struct Bf16 {
  using Code = std::uint16_t;
  KOKKOS_FUNCTION Code encode(float x) const { return to_bf16(x).bits; }
  KOKKOS_FUNCTION float decode(Code code) const { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }
};

/// Codes 0 to 3 are multiples of 2^-16, 0x7c is infinity, and larger ones are NaN.
struct E5m2 {
  using Code = std::uint8_t;
  static constexpr std::uint32_t infinity = 0x7f800000u;
  static constexpr std::uint32_t bias_difference = 127 - 15;
  float scale, inverse;

  KOKKOS_FUNCTION Code encode(float x) const {
    const float product = scale * x;
    const std::uint32_t exact = std::bit_cast<std::uint32_t>(product) & 0x7fffffffu;
    const float magnitude = std::abs(round_to_e5m2(product));
    const std::uint32_t normal = (std::bit_cast<std::uint32_t>(magnitude) >> 21) - (bias_difference << 2);
    // The last bit of 2^7 in fp32 is 2^-16.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(magnitude + 0x1p7f) & 3u;
    const std::uint32_t finite = magnitude < 0x1p-14f ? subnormal : normal;
    const std::uint32_t code = exact > infinity ? 0x7fu : exact == infinity ? 0x7cu : finite;
    return static_cast<Code>(code | (std::bit_cast<std::uint32_t>(product) >> 31 << 7));
  }

  KOKKOS_FUNCTION float decode(Code code) const {
    const std::uint32_t magnitude = code & 0x7fu;
    const float subnormal = static_cast<float>(magnitude) * 0x1p-16f;
    const float normal = std::bit_cast<float>((magnitude + (bias_difference << 2)) << 21);
    const float special = std::bit_cast<float>(infinity | (magnitude & 3u) << 21);
    const float value = magnitude < 4 ? subnormal : magnitude < 0x7c ? normal : special;
    return std::copysign(value, code & 0x80u ? -1.0f : 1.0f) * inverse;
  }
};

/// body(codec) with the codec of the wire.
template <class A, class Body>
void with_codec(const Wire& wire, Body&& body) {
  switch (wire.format) {
    case WireFormat::fp32:
      return body(Plain<A>());
    case WireFormat::bf16:
      return body(Bf16());
    case WireFormat::e5m2:
      return body(E5m2{static_cast<float>(wire.scale), static_cast<float>(1 / wire.scale)});
  }
}

template <class A, class Codec>
void encode_with(const Codec& codec, std::byte* out, Vec<const A> x) {
  auto* codes = reinterpret_cast<typename Codec::Code*>(out);
  for_chunks("encode", x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) codes[i] = codec.encode(x[i]);
  });
}

template <class A, class Codec>
void add_decoded_with(const Codec& codec, Vec<A> sum, const std::byte* in, int count, std::size_t stride) {
  for_chunks("add_decoded", sum.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (int k = 0; k < count; ++k) {
      const auto* codes = reinterpret_cast<const typename Codec::Code*>(in + k * stride);
#pragma omp simd
      for (std::size_t i = first; i < last; ++i) sum[i] += codec.decode(codes[i]);
    }
  });
}

template <class A, class Codec>
void take_rows_with(const Codec& codec, std::byte* out, Mat<A> table, Vec<const std::int32_t> rows) {
  auto* codes = reinterpret_cast<typename Codec::Code*>(out);
  for_rows("take_rows", static_cast<int>(rows.size()), [=] KOKKOS_FUNCTION(int i) {
    A* row = table.row(rows[i]);
    auto* to = codes + static_cast<std::size_t>(i) * table.cols;
    for (int j = 0; j < table.cols; ++j) {
      to[j] = codec.encode(row[j]);
      row[j] = 0;
    }
  });
}

template <class A, class Codec>
void add_decoded_rows_with(const Codec& codec, Mat<A> table, Vec<const std::int32_t> rows, const std::byte* in) {
  const auto* codes = reinterpret_cast<const typename Codec::Code*>(in);
  for_rows("add_decoded_rows", static_cast<int>(rows.size()), [=] KOKKOS_FUNCTION(int i) {
    A* row = table.row(rows[i]);
    const auto* from = codes + static_cast<std::size_t>(i) * table.cols;
    for (int j = 0; j < table.cols; ++j) row[j] += codec.decode(from[j]);
  });
}

}  // namespace

template <class A>
void encode(Stream, std::byte* out, Vec<const A> x, const Wire& wire) {
  with_codec<A>(wire, [&](const auto& codec) { encode_with(codec, out, x); });
}

template <class A>
void add_decoded(Stream, Vec<A> sum, const std::byte* in, int count, std::size_t stride, const Wire& wire) {
  with_codec<A>(wire, [&](const auto& codec) { add_decoded_with(codec, sum, in, count, stride); });
}

template <class A>
void take_rows(Stream, std::byte* out, Mat<A> table, Vec<const std::int32_t> rows, const Wire& wire) {
  with_codec<A>(wire, [&](const auto& codec) { take_rows_with(codec, out, table, rows); });
}

template <class A>
void add_decoded_rows(Stream, Mat<A> table, Vec<const std::int32_t> rows, const std::byte* in, const Wire& wire) {
  with_codec<A>(wire, [&](const auto& codec) { add_decoded_rows_with(codec, table, rows, in); });
}

#define NANORUN_OPS(T)                                                                        \
  template void encode(Stream, std::byte*, Vec<const T>, const Wire&);                        \
  template void add_decoded(Stream, Vec<T>, const std::byte*, int, std::size_t, const Wire&); \
  template void take_rows(Stream, std::byte*, Mat<T>, Vec<const std::int32_t>, const Wire&);  \
  template void add_decoded_rows(Stream, Mat<T>, Vec<const std::int32_t>, const std::byte*, const Wire&);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
