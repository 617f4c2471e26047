#pragma once
// First op of a transformer block: mixes the residual stream with the embeddings and a U-net skip, then RMS norm.
//   x = a[0] * (x_prev + s * skip) + a[1] * x0,   n = rms_norm(x)
// Shapes: x, x_prev, skip, x0, n [T, d]; rstd [T]; a [2] and s [1], learned scalars in the tensors' memory.
// Without a skip, `skip` is null, s is not read, and d_s and d_skip are not written.

#include "kernels/norm.hpp"
#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

template <class T>
struct ResidualInputs {
  Mat<const T> x_prev;
  Mat<const T> x0;
  const acc_t<T>* a = nullptr;
  Mat<const T> skip;
  const acc_t<T>* s = nullptr;
};

template <class T>
struct ResidualGradients {
  Mat<T> d_x;               ///< in: gradient of x except through n; out: gradient of x_prev
  Mat<T> d_x0;              ///< +=
  acc_t<T>* d_a = nullptr;  ///< [2], +=
  Mat<T> d_skip;            ///< =; where skip is x_prev it is not written, but added to d_x
  acc_t<T>* d_s = nullptr;  ///< [1], +=
  Mat<const T> d_x_prev;    ///< gradient of x_prev from elsewhere, added to d_x; null where there is a skip
};

/// `x` may be `in.x_prev.data`.
template <class T>
void residual_mix_norm_forward(Stream stream, Mat<T> x, Mat<T> n, Vec<acc_t<T>> rstd, const ResidualInputs<T>& in,
                               double eps);

/// With g = d_x + rstd (d_n - n mean(d_n n)), the gradient of x:
///   d_x = a[0] g + d_x_prev,  d_skip = a[0] s g,  d_x0 += a[1] g,
///   d_a[0] += sum g (x_prev + s skip),  d_a[1] += sum g x0,  d_s += a[0] sum g skip
template <class T>
void residual_mix_norm_backward(Stream stream, const ResidualGradients<T>& d, const NormGradient<T>& norm,
                                const ResidualInputs<T>& in);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

using portable::ResidualGradients;
using portable::ResidualInputs;

/// T = bf16; rows are whole 16-byte vectors, d <= 4096; else std::invalid_argument.
template <class T>
void residual_mix_norm_forward(Stream stream, Mat<T> x, Mat<T> n, Vec<acc_t<T>> rstd, const ResidualInputs<T>& in,
                               double eps);

/// Thread blocks add to d_a and d_s by atomics, in no fixed order.
template <class T>
void residual_mix_norm_backward(Stream stream, const ResidualGradients<T>& d, const NormGradient<T>& norm,
                                const ResidualInputs<T>& in);

}  // namespace nanorun::kernels::cuda
