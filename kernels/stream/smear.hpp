#pragma once
// Smear: each embedding takes up a part of the one before it, through a gate that reads its first columns.
//   out[0] = e[0],  out[t] = e[t] + scale sigmoid(<w, e[t, 0..g-1]>) e[t-1]
// Shapes: e, out [T, d]; w [g]; scale [1]; learned, in the tensors' memory.

#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// Columns that a gate may read; there must be as many. Otherwise the functions throw std::invalid_argument.
inline constexpr int max_smear_gate = 32;

namespace portable {

template <class T>
void smear_forward(Stream stream, Mat<T> out, Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale);

/// d_e = gradient of e, not in place of d_out; d_w +=, d_scale +=.
template <class T>
void smear_backward(Stream stream, Mat<T> d_e, Vec<acc_t<T>> d_w, acc_t<T>* d_scale, Mat<const T> d_out, Mat<const T> e,
                    Vec<const acc_t<T>> w, const acc_t<T>* scale);

}  // namespace portable

namespace cuda {

/// T = bf16; rows are whole 16-byte vectors; else std::invalid_argument.
template <class T>
void smear_forward(Stream stream, Mat<T> out, Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale);

/// The sums have a fixed order. The stream needs create_sums().
template <class T>
void smear_backward(Stream stream, Mat<T> d_e, Vec<acc_t<T>> d_w, acc_t<T>* d_scale, Mat<const T> d_out, Mat<const T> e,
                    Vec<const acc_t<T>> w, const acc_t<T>* scale);

}  // namespace cuda
}  // namespace nanorun::kernels
