#include "kernels/linear/bias.hpp"

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void add_bias(Stream, Mat<T> out, Vec<const acc_t<T>> b) {
  for_rows("add_bias", out.rows, [=] KOKKOS_FUNCTION(int t) {
    T* const row = out.row(t);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) row[j] += b[j];
  });
}

template <class T>
void bias_backward(Stream, Vec<acc_t<T>> d_b, Mat<const T> d_out) {
  for_columns("bias_backward", d_out.cols, [=] KOKKOS_FUNCTION(int first, int last) {
    for (int t = 0; t < d_out.rows; ++t) {
      const T* const row = d_out.row(t);
#pragma omp simd
      for (int j = first; j < last; ++j) d_b[j] += row[j];
    }
  });
}

#define NANORUN_OPS(T)                                  \
  template void add_bias(Stream, Mat<T>, Vec<const T>); \
  template void bias_backward(Stream, Vec<T>, Mat<const T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
