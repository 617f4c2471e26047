#pragma once
// Wire formats: elementwise encoding of tensors that ranks exchange to sum them.
//   fp32: as it is, a double too
//   bf16: rounded to nearest even
//   e5m2: scale x in fp32, rounded to nearest even; finite values saturate at +-57344. The sum adds the decoded element
//         times 1 / scale, in fp32.
// NaN and infinities stay, so that a sum shows an overflow.
// Shapes: x, sum [n]; an encoded tensor has n * wire_bytes<A>(format) bytes and begins at a multiple of wire_bytes.

#include "kernels/device/types.hpp"

namespace nanorun::kernels {

enum class WireFormat { fp32, bf16, e5m2 };

struct Wire {
  WireFormat format = WireFormat::fp32;
  double scale = 1;  ///< > 0; e5m2 only
};

/// Bytes of an encoded element.
template <class A>
constexpr std::size_t wire_bytes(WireFormat format) {
  if (format == WireFormat::e5m2) return 1;
  return format == WireFormat::bf16 ? 2 : sizeof(A);
}

namespace portable {

template <class A>
void encode(Stream stream, std::byte* out, Vec<const A> x, const Wire& wire);

/// Adds `count` encoded tensors to `sum`, one after the other, so that the order of every element's sum is fixed; they
/// begin `stride` bytes apart.
template <class A>
void add_decoded(Stream stream, Vec<A> sum, const std::byte* in, int count, std::size_t stride, const Wire& wire);

/// The same for some rows of a table, distinct ones, which stand encoded one behind the other. The rows that are taken
/// become zero.
template <class A>
void take_rows(Stream stream, std::byte* out, Mat<A> table, Vec<const std::int32_t> rows, const Wire& wire);
template <class A>
void add_decoded_rows(Stream stream, Mat<A> table, Vec<const std::int32_t> rows, const std::byte* in, const Wire& wire);

}  // namespace portable

namespace cuda {

/// A = float
template <class A>
void encode(Stream stream, std::byte* out, Vec<const A> x, const Wire& wire);

/// A = float
template <class A>
void add_decoded(Stream stream, Vec<A> sum, const std::byte* in, int count, std::size_t stride, const Wire& wire);

/// A = float
template <class A>
void take_rows(Stream stream, std::byte* out, Mat<A> table, Vec<const std::int32_t> rows, const Wire& wire);
template <class A>
void add_decoded_rows(Stream stream, Mat<A> table, Vec<const std::int32_t> rows, const std::byte* in, const Wire& wire);

}  // namespace cuda
}  // namespace nanorun::kernels
