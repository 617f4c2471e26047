#pragma once
// RMS norm without gain over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).
//   rstd[t] = 1 / sqrt(mean_j x[t,j]^2 + eps),  out[t,j] = x[t,j] * rstd[t]
// Shapes: x, out [T, d]; rstd [T].

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// `out` may be `x`. Where `maximum` is not null, *maximum = max(*maximum, |out|) over all elements; NaN does not
/// count.
template <class T>
void rms_norm_forward(Stream stream, Mat<T> out, Vec<acc_t<T>> rstd, Mat<const T> x, double eps,
                      acc_t<T>* maximum = nullptr);

/// d_x += rstd * (d_out - out * mean_j(d_out * out)), or = without `add`; needs the forward's out and rstd, not its x.
template <class T>
void rms_norm_backward(Stream stream, Mat<T> d_x, Mat<const T> out, Vec<const acc_t<T>> rstd, Mat<const T> d_out,
                       bool add);

/// What a backward pass through a norm and what comes before it needs: the forward's n [T, d] and rstd [T], and the
/// gradient of n [T, d]. With `alone`, what comes before has no gradient but the one through the norm.
template <class T>
struct NormGradient {
  Mat<const T> n;
  Vec<const acc_t<T>> rstd;
  Mat<const T> d_n;
  bool alone = false;
};

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

using portable::NormGradient;

/// T = bf16; rows are whole 16-byte vectors, d <= 4096; else std::invalid_argument. `maximum` is that of the rounded
/// out.
template <class T>
void rms_norm_forward(Stream stream, Mat<T> out, Vec<acc_t<T>> rstd, Mat<const T> x, double eps,
                      acc_t<T>* maximum = nullptr);

template <class T>
void rms_norm_backward(Stream stream, Mat<T> d_x, Mat<const T> out, Vec<const acc_t<T>> rstd, Mat<const T> d_out,
                       bool add);

}  // namespace nanorun::kernels::cuda
