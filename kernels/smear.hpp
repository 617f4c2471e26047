#pragma once
// Smear: each embedding takes up a part of the one before it, through a gate that reads its first columns.
//   out[0] = e[0],  out[t] = e[t] + scale sigmoid(<w, e[t, 0..g-1]>) e[t-1]
// Shapes: e, out [T, d]; w [g]; scale [1]; learned, in the tensors' memory.

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

template <class T>
void smear_forward(Stream stream, Mat<T> out, Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale);

/// d_e = gradient of e; d_w +=, d_scale +=.
template <class T>
void smear_backward(Stream stream, Mat<T> d_e, Vec<acc_t<T>> d_w, acc_t<T>* d_scale, Mat<const T> d_out, Mat<const T> e,
                    Vec<const acc_t<T>> w, const acc_t<T>* scale);

}  // namespace nanorun::kernels::portable
