#include "kernels/residual.hpp"

#include <cassert>
#include <cmath>

#include "kernels/norm.hpp"
#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// x[t] = a0 (x_prev[t] + s skip[t]) + a1 x0[t]; returns sum_j x[t,j]².
template <class T>
KOKKOS_FUNCTION T mix_row(int t, Mat<T> x, const ResidualInputs<T>& in) {
  const T* x_prev = in.x_prev.row(t);
  const T* x0 = in.x0.row(t);
  T* to = x.row(t);
  const T a0 = in.a[0], a1 = in.a[1];
  T squares = 0;
  if (in.skip) {
    const T* skip = in.skip.row(t);
    const T s = in.s[0];
#pragma omp simd reduction(+ : squares)
    for (int j = 0; j < x.cols; ++j) {
      to[j] = a0 * (x_prev[j] + s * skip[j]) + a1 * x0[j];
      squares += to[j] * to[j];
    }
  } else {
#pragma omp simd reduction(+ : squares)
    for (int j = 0; j < x.cols; ++j) {
      to[j] = a0 * x_prev[j] + a1 * x0[j];
      squares += to[j] * to[j];
    }
  }
  return squares;
}

}  // namespace

template <class T>
void residual_mix_norm_forward(Stream, Mat<T> x, Mat<T> n, Vec<acc_t<T>> rstd, const ResidualInputs<T>& in,
                               double eps) {
  for_rows("residual_mix_norm_forward", x.rows, [=] KOKKOS_FUNCTION(int t) {
    const T r = 1 / std::sqrt(mix_row(t, x, in) / x.cols + static_cast<T>(eps));
    const T* from = x.row(t);
    T* to = n.row(t);
    rstd[t] = r;
#pragma omp simd
    for (int j = 0; j < x.cols; ++j) to[j] = from[j] * r;
  });
}

template <class T>
void residual_mix_norm_backward(Stream stream, const ResidualGradients<T>& d, const NormGradient<T>& norm,
                                const ResidualInputs<T>& in) {
  assert(!in.skip || !d.d_x_prev);
  rms_norm_backward<T>(stream, d.d_x, norm.n, norm.rstd, norm.d_n);
  const int cols = d.d_x.cols;
  const bool skip_is_x_prev = in.skip && in.skip.data == in.x_prev.data;
  const Sums<3> by = sum_rows<3>("residual_mix_norm_backward", d.d_x.rows, [=] KOKKOS_FUNCTION(int t) {
    const T a0 = in.a[0], a1 = in.a[1];
    const T s = in.skip ? in.s[0] : 0;
    T* d_x = d.d_x.row(t);
    T* d_x0 = d.d_x0.row(t);
    // The dot products come first: d_x is replaced below.
    const T dot_x_prev = dot<T>(d_x, in.x_prev.row(t), cols);
    const T dot_x0 = dot<T>(d_x, in.x0.row(t), cols);
    const T dot_skip = in.skip ? dot<T>(d_x, in.skip.row(t), cols) : 0;
#pragma omp simd
    for (int j = 0; j < cols; ++j) {
      d_x0[j] += a1 * d_x[j];
      d_x[j] *= a0;
    }
    if (skip_is_x_prev) {
#pragma omp simd
      for (int j = 0; j < cols; ++j) d_x[j] += s * d_x[j];
    } else if (in.skip) {
      T* d_skip = d.d_skip.row(t);
#pragma omp simd
      for (int j = 0; j < cols; ++j) d_skip[j] = s * d_x[j];
    }
    if (d.d_x_prev) {
      const T* d_x_prev = d.d_x_prev.row(t);
#pragma omp simd
      for (int j = 0; j < cols; ++j) d_x[j] += d_x_prev[j];
    }
    return Sums<3>{{dot_x_prev, dot_x0, dot_skip}};
  });
  for_rows("residual_scalars", 1, [=] KOKKOS_FUNCTION(int) {
    const auto [by_x_prev, by_x0, by_skip] = by.values;
    const T s = in.skip ? in.s[0] : 0;
    d.d_a[0] += static_cast<T>(by_x_prev + s * by_skip);
    d.d_a[1] += static_cast<T>(by_x0);
    if (in.skip) d.d_s[0] += static_cast<T>(in.a[0] * by_skip);
  });
}

#define NANORUN_INSTANTIATE(T)                                                                               \
  template void residual_mix_norm_forward(Stream, Mat<T>, Mat<T>, Vec<T>, const ResidualInputs<T>&, double); \
  template void residual_mix_norm_backward(Stream, const ResidualGradients<T>&, const NormGradient<T>&,      \
                                           const ResidualInputs<T>&);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
