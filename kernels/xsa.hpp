#pragma once
// XSA: takes from each head's output its part along the token's own value.
//   out[t,h] = y[t,h] - tanh(alpha[t,h]) (<y[t,h], v[t,h]> / max(<v[t,h], v[t,h]>, 1e-8)) v[t,h]
// Shapes: y, v, out [T, H D], head-major; alpha [T, H]; rows of alpha may coincide (ld = 0), as learned scalars do.

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

/// `out` may be `y`.
template <class T>
void xsa_forward(Stream stream, Mat<T> out, Mat<const T> y, Mat<const T> v, Mat<const acc_t<T>> alpha, int heads);

/// d_y = gradient of y; d_v +=, d_alpha += (one sum where its own rows coincide). `d_y` may be `d_out`.
template <class T>
void xsa_backward(Stream stream, Mat<T> d_y, Mat<T> d_v, Mat<acc_t<T>> d_alpha, Mat<const T> d_out, Mat<const T> y,
                  Mat<const T> v, Mat<const acc_t<T>> alpha, int heads);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16, summed in fp32. Rows are whole 16-byte vectors, D is a power of two from 8 to 256; else
/// std::invalid_argument.
template <class T>
void xsa_forward(Stream stream, Mat<T> out, Mat<const T> y, Mat<const T> v, Mat<const acc_t<T>> alpha, int heads);

/// Where the rows of d_alpha coincide, thread blocks add to it by atomics, in no fixed order.
template <class T>
void xsa_backward(Stream stream, Mat<T> d_y, Mat<T> d_v, Mat<acc_t<T>> d_alpha, Mat<const T> d_out, Mat<const T> y,
                  Mat<const T> v, Mat<const acc_t<T>> alpha, int heads);

}  // namespace nanorun::kernels::cuda
