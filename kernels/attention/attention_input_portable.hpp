#pragma once
// The forward direction of attention_input.hpp in the portable implementation of attention_projection_forward. The CUDA
// implementation fuses it with the GEMM.

#include "kernels/attention/attention_input.hpp"

namespace nanorun::kernels::portable {

/// `qk` may be the first 2 H D columns of `qkv`, and `v_out` with `in_place` the last H D. With a key offset, the last
/// row of qk gets only the still dims of keys.
template <class T>
void attention_input_forward(Stream stream, Mat<T> qk, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const T> qkv,
                             const Rotary<T>& rotary, const ValueResidual<T>& residual, double eps);

}  // namespace nanorun::kernels::portable
