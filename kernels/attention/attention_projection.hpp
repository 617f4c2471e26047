#pragma once
// QKV projection [q k v] = x wᵀ of the normed residual stream, then attention_input_forward.
// Shapes: x [T, K]; w [3 H D, K]; the others as in attention_input.hpp. With a key offset qkv has T + 1 rows.

#include "kernels/attention/attention_input.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// qkv = [q' k' v]. The second source of the values may be the value part of qkv itself, without an index.
template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_mixed, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueMix<T>& mix, double eps);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16. Norm, rotation and mix are the GEMM's epilogue and read its unrounded sums. Throws std::invalid_argument
/// unless D = 128, K is a multiple of 64 and rows are aligned to 16 bytes, or where an odd number of heads is paired.
/// Of the further row of a key offset only the still dims of keys are written.
template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_mixed, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueMix<T>& mix, double eps);

}  // namespace nanorun::kernels::cuda
