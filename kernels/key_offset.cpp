#include "kernels/key_offset.hpp"

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// body(first, last) on ranges of columns that cover the still dims of all heads; a quarter of a head on CPUs, one
/// column on devices, so that neighbouring threads read neighbouring elements.
template <class Body>
void for_still_columns(const char* label, int cols, int heads, const Body& body) {
  const int quarter = cols / heads / 4, width = on_host ? quarter : 1, per_quarter = quarter / width;
  for_rows(label, 2 * heads * per_quarter, [=] KOKKOS_FUNCTION(int i) {
    // Of the quarters of all heads, each second one stands still.
    const int first = (2 * (i / per_quarter) + 1) * quarter + i % per_quarter * width;
    body(first, first + width);
  });
}

}  // namespace

template <class T>
void key_offset_forward(Stream, Mat<T> k, int heads) {
  for_still_columns("key_offset_forward", k.cols, heads, [=] KOKKOS_FUNCTION(int first, int last) {
    for (int t = k.rows - 1; t > 0; --t) {
      const T* const from = k.row(t - 1);
      T* const to = k.row(t);
#pragma omp simd
      for (int j = first; j < last; ++j) to[j] = from[j];
    }
  });
}

template <class T>
void key_offset_backward(Stream, Mat<T> d_k, int heads) {
  for_still_columns("key_offset_backward", d_k.cols, heads, [=] KOKKOS_FUNCTION(int first, int last) {
    const int end = d_k.rows - 1;
    if (end < 1) return;
    for (int j = first; j < last; ++j) d_k.row(0)[j] += d_k.row(1)[j];
    for (int t = 1; t < end; ++t) {
      const T* const from = d_k.row(t + 1);
      T* const to = d_k.row(t);
#pragma omp simd
      for (int j = first; j < last; ++j) to[j] = from[j];
    }
    for (int j = first; j < last; ++j) d_k.row(end)[j] = 0;
  });
}

#define NANORUN_INSTANTIATE(T)                           \
  template void key_offset_forward(Stream, Mat<T>, int); \
  template void key_offset_backward(Stream, Mat<T>, int);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
