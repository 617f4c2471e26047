#include "kernels/key_offset.hpp"

#include <algorithm>

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// Whether the first column of a quarter of a head stands still; of the quarters of all heads, each second one does.
KOKKOS_INLINE_FUNCTION bool stands_still(int quarter) { return quarter % 2 == 1; }

}  // namespace

template <class T>
void key_offset_forward(Stream, Mat<T> out, Mat<const T> k, int heads) {
  const int quarter = k.cols / heads / 4;
  for_rows("key_offset_forward", k.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int q = 0; q < 4 * heads; ++q) {
      const T* const from = k.row(stands_still(q) && t > 0 ? t - 1 : t) + q * quarter;
      T* const to = out.row(t) + q * quarter;
#pragma omp simd
      for (int j = 0; j < quarter; ++j) to[j] = from[j];
    }
  });
}

template <class T>
void key_offset_backward(Stream, Mat<T> d_k, Mat<const T> d_out, int heads) {
  const int quarter = d_k.cols / heads / 4, last = d_k.rows - 1;
  for_rows("key_offset_backward", d_k.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int q = 0; q < 4 * heads; ++q) {
      const T* const own = d_out.row(t) + q * quarter;
      const T* const next = d_out.row(t < last ? t + 1 : t) + q * quarter;
      const T from_own = !stands_still(q) || t == 0 ? 1 : 0, from_next = stands_still(q) && t < last ? 1 : 0;
      T* const to = d_k.row(t) + q * quarter;
#pragma omp simd
      for (int j = 0; j < quarter; ++j) to[j] = from_own * own[j] + from_next * next[j];
    }
  });
}

#define NANORUN_INSTANTIATE(T)                                         \
  template void key_offset_forward(Stream, Mat<T>, Mat<const T>, int); \
  template void key_offset_backward(Stream, Mat<T>, Mat<const T>, int);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
