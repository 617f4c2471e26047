#pragma once
// GEMMs of the CUDA implementation through cuBLASLt. A stream has one state, destroyed when the stream is idle:
//   Stream stream{handle};  create_blas(stream);  ...  destroy_blas(stream);
//
// Algorithms: the first gemm() of a shape times the library's candidates on its own operands, which synchronises the
// stream, and keeps the fastest. A gemm() that adds to its result in place times its first rows only, into scratch
// memory of up to gemm_timing_bytes (device.hpp). As timing decides the choice, two runs may round differently.
//
// A stream for Gemms::reproducible times nothing and takes the first algorithm of the library's heuristic. The
// heuristic depends on shapes, types, alignments up to 256 bytes, the library's version and the device's model, so two
// runs sum in the same order: memory of device.hpp is aligned to 256 bytes. An algorithm that splits the sum adds up
// its parts in a fixed order.

#include "kernels/device/device.hpp"
#include "kernels/device/fp16.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Sets stream.blas: cuBLASLt on the current device with a workspace of 32 MiB. `gemms` is timed or reproducible.
/// Throws std::runtime_error, and std::bad_alloc where the memory does not suffice.
void create_blas(Stream& stream, Gemms gemms = Gemms::timed);

/// Frees what create_blas made and clears stream.blas; nothing happens where it is null.
void destroy_blas(Stream& stream);

enum class Op { none, transpose };

struct GemmOptions {
  float alpha = 1;
  float beta = 0;
  int count = 1;                   ///< batch size; each matrix begins rows * ld elements behind the one before
  bool fast_accumulation = false;  ///< 8-bit operands: partial sums stay in the tensor cores' shorter accumulators
  const float* factor = nullptr;   ///< in device memory, used in the place of alpha; beta must be 0 or 1 then
};

/// d = alpha op(a) op(b) + beta c, summed in fp32. c has the shape and stride of d, and may be d.
/// A, B: bf16, fp16, or 8-bit with Op::none for a, Op::transpose for b, and rows and strides of multiples of 16
/// elements. D: bf16, or float where A and B are bf16; fp16 where A and B are. Throws std::logic_error without
/// create_blas(), std::runtime_error where cuBLASLt has no algorithm, and std::bad_alloc where memory for the timing is
/// lacking.
template <class A, class B, class D>
void gemm(Stream stream, const GemmOptions& options, Op op_a, Mat<const A> a, Op op_b, Mat<const B> b, Mat<const D> c,
          Mat<D> d);

template <class A, class B, class D>
void gemm(Stream stream, const GemmOptions& options, Op op_a, Mat<const A> a, Op op_b, Mat<const B> b, Mat<D> d) {
  gemm<A, B, D>(stream, options, op_a, a, op_b, b, d, d);
}

}  // namespace nanorun::kernels::cuda
