#pragma once
// From the normed stream to what attention reads: [q k v] = x wᵀ, then attention_input_forward.
// Shapes: x [T, K]; w [3 H D, K]; the others as in attention_input.hpp.

#include "kernels/attention_input.hpp"
#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

/// qkv = [q' k' v]. The second source of the values may be the value part of qkv itself, then without an index.
template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_mixed, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueMix<T>& mix, double eps);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16, D = 128. Norm, rotation and mix read the product unrounded. K is a multiple of 64, and rows begin at whole
/// 16-byte vectors; throws std::invalid_argument otherwise.
template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_mixed, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueMix<T>& mix, double eps);

}  // namespace nanorun::kernels::cuda
