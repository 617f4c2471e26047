#include "kernels/stream/norm.hpp"

#include <cmath>

#include "kernels/device/magnitude.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// out = rms_norm(x + shift), with rstd.
template <class T>
void shifted_norm(Mat<T> out, Vec<T> rstd, Mat<const T> x, Vec<const T> shift, T eps) {
  for_rows("rms_norm_forward", x.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* from = x.row(t);
    T* to = out.row(t);
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int j = 0; j < x.cols; ++j) {
      const T shifted = from[j] + shift[j];
      squares += shifted * shifted;
    }
    const T r = 1 / std::sqrt(squares / x.cols + eps);
    rstd[t] = r;
#pragma omp simd
    for (int j = 0; j < x.cols; ++j) to[j] = (from[j] + shift[j]) * r;
  });
}

template <class T>
void plain_norm(Mat<T> out, Vec<T> rstd, Mat<const T> x, T eps) {
  for_rows("rms_norm_forward", x.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* from = x.row(t);
    T* to = out.row(t);
    const T r = 1 / std::sqrt(dot(from, from, x.cols) / x.cols + eps);
    rstd[t] = r;
#pragma omp simd
    for (int j = 0; j < x.cols; ++j) to[j] = from[j] * r;
  });
}

}  // namespace

template <class T>
void rms_norm_forward(Stream stream, Mat<T> out, Vec<acc_t<T>> rstd, Mat<const T> x, double eps, acc_t<T>* maximum,
                      Vec<const std::type_identity_t<acc_t<T>>> shift) {
  if (shift.empty()) {
    plain_norm<T>(out, rstd, x, static_cast<T>(eps));
  } else {
    shifted_norm<T>(out, rstd, x, shift, static_cast<T>(eps));
  }
  const Magnitude<T> magnitude{maximum, out};
  if (maximum) max_magnitude<T>(stream, {&magnitude, 1});
}

template <class T>
void rms_norm_backward(Stream, Mat<T> d_x, Mat<const T> out, Vec<const acc_t<T>> rstd, Mat<const T> d_out,
                       Output output) {
  const bool adds = output == Output::accumulate;
  for_rows("rms_norm_backward", out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* y = out.row(t);
    const T* d_y = d_out.row(t);
    T* d = d_x.row(t);
    const T mean = dot(d_y, y, out.cols) / out.cols;
    const T r = rstd[t];
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) d[j] = (adds ? d[j] : 0) + r * (d_y[j] - y[j] * mean);
  });
}

#define NANORUN_OPS(T)                                                                            \
  template void rms_norm_forward(Stream, Mat<T>, Vec<T>, Mat<const T>, double, T*, Vec<const T>); \
  template void rms_norm_backward(Stream, Mat<T>, Mat<const T>, Vec<const T>, Mat<const T>, Output);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
