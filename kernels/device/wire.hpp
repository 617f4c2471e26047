#pragma once
// Wire formats: elementwise encoding of tensors that ranks exchange to sum them.
//   fp32: unchanged; a double stays a double, a bf16 a bf16
//   bf16: rounded to nearest even
//   e5m2: scale x in fp32, rounded to nearest even; finite values saturate at +-57344. The sum adds the decoded element
//         times 1 / scale, in fp32.
// NaN and infinities are kept, so that a sum shows an overflow.
// Shapes: x, sum [n]; an encoded tensor has n * wire_bytes<A>(format) bytes and begins at a multiple of wire_bytes.

#include "kernels/device/op.hpp"
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

NANORUN_DECLARE_OPS({
  /// out = x, encoded.
  /// CUDA: A = float or bf16.
  template <class A>
  void encode(Stream stream, std::byte * out, Vec<const A> x, const Wire& wire);

  /// Adds `count` encoded tensors to `sum`, one after the other, so that the order of each element's sum is fixed. They
  /// begin `stride` bytes apart. A bf16 is rounded once, when all have been added in fp32.
  /// CUDA: A = float or bf16.
  template <class A>
  void add_decoded(Stream stream, Vec<A> sum, const std::byte* in, int count, std::size_t stride, const Wire& wire);

  /// Encodes some rows of a table, one behind the other, and sets them to zero in the table. `rows` has no row twice.
  /// CUDA: A = float, as for the op below.
  template <class A>
  void take_rows(Stream stream, std::byte * out, Mat<A> table, Vec<const std::int32_t> rows, const Wire& wire);
  /// Adds rows that stand encoded one behind the other to these rows of a table. `rows` has no row twice.
  template <class A>
  void add_decoded_rows(Stream stream, Mat<A> table, Vec<const std::int32_t> rows, const std::byte* in,
                        const Wire& wire);
})

}  // namespace nanorun::kernels
