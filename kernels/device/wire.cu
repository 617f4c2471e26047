#include "kernels/device/wire.hpp"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

// A codec for each format; Code is the encoded element.

struct Fp32 {
  using Code = float;
  __device__ Code encode(float x) const { return x; }
  __device__ float decode(Code code) const { return code; }
};

struct Bf16 {
  using Code = std::uint16_t;
  __device__ Code encode(float x) const { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
  __device__ float decode(Code code) const { return __uint_as_float(static_cast<std::uint32_t>(code) << 16); }
};

/// e5m2 is the upper half of an IEEE half, with infinities and NaN.
struct E5m2 {
  using Code = std::uint8_t;
  float scale, inverse;
  __device__ Code encode(float x) const {
    const float product = scale * x;
    const Code code = __nv_cvt_float_to_fp8(product, __NV_SATFINITE, __NV_E5M2);
    return isinf(product) ? (code & 0x80u) | 0x7Cu : code;
  }
  __device__ float decode(Code code) const {
    const float value = __half2float(__ushort_as_half(static_cast<unsigned short>(code << 8)));
    // Not contracted to an fma with the following addition: the contract rounds in between.
    return __fmul_rn(value, inverse);
  }
};

/// Elements of a thread: 16 bytes of codes, but at most two 16-byte vectors of floats.
template <class Codec>
constexpr int vector_width = sizeof(typename Codec::Code) == 4 ? 4 : 8;

template <class A, class Codec>
struct Encode {
  typename Codec::Code* out;
  const A* x;
  Codec codec;

  template <int W>
  __device__ void apply(std::size_t i) const {
    const Vector<float, W> values = load_floats<W>(x + i);
    Vector<typename Codec::Code, W> codes;
#pragma unroll
    for (int k = 0; k < W; ++k) codes.v[k] = codec.encode(values.v[k]);
    store_vector(out + i, codes);
  }
};

template <class A, class Codec>
struct AddDecoded {
  A* sum;
  const std::byte* in;
  int count;
  std::size_t stride;
  Codec codec;

  template <int W>
  __device__ void apply(std::size_t i) const {
    using Code = typename Codec::Code;
    Vector<float, W> total = load_floats<W>(sum + i);
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const Vector<Code, W> codes = load_vector<W>(reinterpret_cast<const Code*>(in + k * stride) + i);
#pragma unroll
      for (int j = 0; j < W; ++j) total.v[j] += codec.decode(codes.v[j]);
    }
    store_rounded(sum + i, total);
  }
};

/// Element i of rows that stand one behind the other.
struct Rows {
  const std::int32_t* rows;
  int cols, ld;

  __device__ std::size_t offset(std::size_t i) const {
    return rows[i / cols] * static_cast<std::size_t>(ld) + i % cols;
  }
};

template <class Codec>
struct TakeRows {
  typename Codec::Code* out;
  float* table;
  Rows rows;
  Codec codec;

  template <int W>
  __device__ void apply(std::size_t i) const {
    float* const row = table + rows.offset(i);
    const Vector<float, W> values = load_vector<W>(row);
    Vector<typename Codec::Code, W> codes;
#pragma unroll
    for (int k = 0; k < W; ++k) codes.v[k] = codec.encode(values.v[k]);
    store_vector(out + i, codes);
    store_vector(row, Vector<float, W>{});
  }
};

template <class Codec>
struct AddDecodedRows {
  float* table;
  const typename Codec::Code* in;
  Rows rows;
  Codec codec;

  template <int W>
  __device__ void apply(std::size_t i) const {
    float* const row = table + rows.offset(i);
    Vector<float, W> total = load_vector<W>(row);
    const Vector<typename Codec::Code, W> codes = load_vector<W>(in + i);
#pragma unroll
    for (int j = 0; j < W; ++j) total.v[j] += codec.decode(codes.v[j]);
    store_vector(row, total);
  }
};

/// Over the elements of `count` rows; vectors do not cross from a row into the next.
template <class Codec, class Body>
void launch_rows(const char* op, Stream stream, std::size_t count, const Body& body, const Mat<float>& table,
                 const typename Codec::Code* codes) {
  constexpr int width = vector_width<Codec>;
  const std::size_t elements = count * table.cols;
  if (table.cols % width == 0 && table.ld % width == 0) {
    launch_elementwise<width>(op, stream, elements, body, table.data, codes);
  } else {
    launch_elementwise<1>(op, stream, elements, body, table.data, codes);
  }
}

/// body(codec) with the codec of the wire for elements of type A.
template <class A, class Body>
void with_codec(const Wire& wire, Body&& body) {
  switch (wire.format) {
    case WireFormat::fp32:
      return body(std::conditional_t<std::is_same_v<A, bf16>, Bf16, Fp32>());
    case WireFormat::bf16:
      return body(Bf16());
    case WireFormat::e5m2:
      return body(E5m2{static_cast<float>(wire.scale), static_cast<float>(1 / wire.scale)});
  }
}

}  // namespace

template <class A>
void encode(Stream stream, std::byte* out, Vec<const A> x, const Wire& wire) {
  with_codec<A>(wire, [&]<class Codec>(const Codec& codec) {
    auto* codes = reinterpret_cast<typename Codec::Code*>(out);
    const Encode<A, Codec> body{codes, x.data(), codec};
    launch_elementwise<vector_width<Codec>>("encode", stream, x.size(), body, codes, x.data());
  });
}

template <class A>
void add_decoded(Stream stream, Vec<A> sum, const std::byte* in, int count, std::size_t stride, const Wire& wire) {
  with_codec<A>(wire, [&]<class Codec>(const Codec& codec) {
    const AddDecoded<A, Codec> body{sum.data(), in, count, stride, codec};
    const auto* first = reinterpret_cast<const typename Codec::Code*>(in);
    const auto* second = reinterpret_cast<const typename Codec::Code*>(in + stride);
    launch_elementwise<vector_width<Codec>>("add_decoded", stream, sum.size(), body, sum.data(), first, second);
  });
}

template <class A>
void take_rows(Stream stream, std::byte* out, Mat<A> table, Vec<const std::int32_t> rows, const Wire& wire) {
  with_codec<A>(wire, [&]<class Codec>(const Codec& codec) {
    auto* codes = reinterpret_cast<typename Codec::Code*>(out);
    const TakeRows<Codec> body{codes, table.data, {rows.data(), table.cols, table.ld}, codec};
    launch_rows<Codec>("take_rows", stream, rows.size(), body, table, codes);
  });
}

template <class A>
void add_decoded_rows(Stream stream, Mat<A> table, Vec<const std::int32_t> rows, const std::byte* in,
                      const Wire& wire) {
  with_codec<A>(wire, [&]<class Codec>(const Codec& codec) {
    const auto* codes = reinterpret_cast<const typename Codec::Code*>(in);
    const AddDecodedRows<Codec> body{table.data, codes, {rows.data(), table.cols, table.ld}, codec};
    launch_rows<Codec>("add_decoded_rows", stream, rows.size(), body, table, codes);
  });
}

template void encode(Stream, std::byte*, Vec<const float>, const Wire&);
template void encode(Stream, std::byte*, Vec<const bf16>, const Wire&);
template void add_decoded(Stream, Vec<bf16>, const std::byte*, int, std::size_t, const Wire&);
template void add_decoded(Stream, Vec<float>, const std::byte*, int, std::size_t, const Wire&);
template void take_rows(Stream, std::byte*, Mat<float>, Vec<const std::int32_t>, const Wire&);
template void add_decoded_rows(Stream, Mat<float>, Vec<const std::int32_t>, const std::byte*, const Wire&);

}  // namespace nanorun::kernels::cuda
