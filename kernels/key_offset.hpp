#pragma once
// Key offset: the dims of keys that the rotary embedding leaves still come from the token before.
//   out[t, h, j] = k[t-1, h, j] for t >= 1 and j in [D/4, D/2) or [3 D/4, D), else k[t, h, j]
// The pairs of the rotary embedding are (j, j + D/2), of which those with j >= D/4 stand still.
// Shapes: k, out and their gradients [T, H D], head-major, any row stride; out is not k, nor d_k d_out.

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

template <class T>
void key_offset_forward(Stream stream, Mat<T> out, Mat<const T> k, int heads);

/// The last row's still dims get no gradient, the first's get their own and the second's.
template <class T>
void key_offset_backward(Stream stream, Mat<T> d_k, Mat<const T> d_out, int heads);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16; rows are whole 16-byte vectors and D is a multiple of 32; else std::invalid_argument.
template <class T>
void key_offset_forward(Stream stream, Mat<T> out, Mat<const T> k, int heads);

template <class T>
void key_offset_backward(Stream stream, Mat<T> d_k, Mat<const T> d_out, int heads);

}  // namespace nanorun::kernels::cuda
