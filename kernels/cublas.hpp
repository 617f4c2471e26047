#pragma once
// Matrix products of the CUDA bodies through cuBLASLt. A rank creates one state beside its stream and destroys it when
// the stream is idle:
//   Stream stream{handle};  create_blas(stream);  ...  destroy_blas(stream);
//
// The first product of a shape times the library's candidates on its own operands and keeps the fastest, which
// synchronises the stream. One that adds to its result times as many of its rows as gemm_timing_bytes (device.hpp)
// hold of the result, and takes that memory meanwhile. Timing decides the choice, so two runs may round differently.

#include "kernels/types.hpp"

namespace nanorun::kernels::cuda {

/// Sets stream.blas: cuBLASLt on the current device with a workspace of 32 MiB. Throws std::runtime_error, and
/// std::bad_alloc where the memory does not suffice.
void create_blas(Stream& stream);

/// Frees what create_blas made and clears stream.blas; nothing happens where it is null.
void destroy_blas(Stream& stream);

enum class Op { none, transpose };

struct GemmOptions {
  float alpha = 1;
  float beta = 0;
  int count = 1;                   ///< products of one shape; the operands of the next begin rows * ld elements later
  bool fast_accumulation = false;  ///< 8-bit operands: partial sums stay in the tensor cores' shorter accumulators
};

/// d = alpha op(a) op(b) + beta c, summed in fp32; c has the shape and stride of d and may be d.
/// Operands: bf16 with bf16 or float results; 8-bit with Op::none for a, Op::transpose for b, bf16 or float results and
/// rows and strides of a multiple of 16 elements. Throws std::runtime_error where cuBLASLt has no algorithm, and
/// std::bad_alloc where memory for its choice is lacking.
template <class A, class B, class D>
void gemm(Stream stream, const GemmOptions& options, Op op_a, Mat<const A> a, Op op_b, Mat<const B> b, Mat<const D> c,
          Mat<D> d);

template <class A, class B, class D>
void gemm(Stream stream, const GemmOptions& options, Op op_a, Mat<const A> a, Op op_b, Mat<const B> b, Mat<D> d) {
  gemm<A, B, D>(stream, options, op_a, a, op_b, b, d, d);
}

}  // namespace nanorun::kernels::cuda
