#pragma once
// RMS norm without gain over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).
//   rstd[t] = 1 / sqrt(mean_j x[t,j]^2 + eps),  out[t,j] = x[t,j] * rstd[t]
// Shapes: x, out [T, d]; rstd [T]; shift [d], or empty for none: then x + shift stands in the place of x.

#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// Backward pass of n = rms_norm(x), for ops that fuse it with what made x.
template <class T>
struct NormGradient {
  Mat<const T> n;             ///< [T, d], the forward's. Null: there was no norm
  Vec<const acc_t<T>> rstd;   ///< [T], the forward's
  Mat<const T> d_n;           ///< [T, d], gradient of n
  bool is_only_path = false;  ///< x has no gradient but the one through n
};

NANORUN_DECLARE_OPS({
  /// `out` may be `x`. Where `maximum` is not null, *maximum = max(*maximum, |out|) over all elements; NaN does not
  /// count.
  /// CUDA: T = bf16; rows are whole 16-byte vectors, so is the shift, d <= 4096; else std::invalid_argument. *maximum
  /// is taken of the rounded out.
  template <class T>
  void rms_norm_forward(Stream stream, Mat<T> out, Vec<acc_t<T>> rstd, Mat<const T> x, double eps,
                        acc_t<T>* maximum = nullptr, Vec<const std::type_identity_t<acc_t<T>>> shift = {});

  /// d_x = rstd * (d_out - out * mean_j(d_out * out)), or += with Output::accumulate. Needs the forward's out and
  /// rstd, not its x.
  /// CUDA: demands what the forward does.
  template <class T>
  void rms_norm_backward(Stream stream, Mat<T> d_x, Mat<const T> out, Vec<const acc_t<T>> rstd, Mat<const T> d_out,
                         Output output);
})

}  // namespace nanorun::kernels
