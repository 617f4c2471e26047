#include "kernels/stream/gain.hpp"

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void gain_forward(Stream, Mat<T> out, Mat<const T> n, Vec<const acc_t<T>> g) {
  for_rows("gain_forward", out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* const from = n.row(t);
    T* const to = out.row(t);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) to[j] = g[j] * from[j];
  });
}

template <class T>
void gain_backward(Stream, Mat<T> d_n, Vec<acc_t<T>> d_g, Mat<const T> d_out, Mat<const T> n, Vec<const acc_t<T>> g) {
  for_columns("gain_backward", d_out.cols, [=] KOKKOS_FUNCTION(int first, int last) {
    for (int t = 0; t < d_out.rows; ++t) {
      const T *const d = d_out.row(t), *const x = n.row(t);
      T* const to = d_n.row(t);
#pragma omp simd
      for (int j = first; j < last; ++j) {
        d_g[j] += d[j] * x[j];
        to[j] = g[j] * d[j];
      }
    }
  });
}

template <class T>
void gain_unfold(Stream, Mat<acc_t<T>> d_w, Output output, Vec<acc_t<T>> d_g, Mat<const acc_t<T>> d_folded,
                 Mat<const T> w, Vec<const acc_t<T>> g) {
  const bool adds = output == Output::accumulate;
  for_columns("gain_unfold", w.cols, [=] KOKKOS_FUNCTION(int first, int last) {
    for (int i = 0; i < w.rows; ++i) {
      const T *const d = d_folded.row(i), *const of_row = w.row(i);
      T* const to = d_w.row(i);
#pragma omp simd
      for (int j = first; j < last; ++j) {
        d_g[j] += d[j] * of_row[j];
        to[j] = (adds ? to[j] : 0) + g[j] * d[j];
      }
    }
  });
}

#define NANORUN_OPS(T)                                                                           \
  template void gain_forward(Stream, Mat<T>, Mat<const T>, Vec<const T>);                        \
  template void gain_backward(Stream, Mat<T>, Vec<T>, Mat<const T>, Mat<const T>, Vec<const T>); \
  template void gain_unfold<T>(Stream, Mat<T>, Output, Vec<T>, Mat<const T>, Mat<const T>, Vec<const T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
