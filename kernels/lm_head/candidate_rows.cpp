#include "kernels/lm_head/candidate_rows.hpp"

#include <cassert>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

template <class T>
KOKKOS_FUNCTION void copy_row(T* to, const T* from, int n) {
#pragma omp simd
  for (int j = 0; j < n; ++j) to[j] = from[j];
}

}  // namespace

template <class T>
void gather_rows(Stream, Mat<T> out, Mat<const T> x, Vec<const std::int32_t> rows) {
  assert(rows.size() == static_cast<std::size_t>(out.rows) && out.cols == x.cols);
  for_rows("gather_rows", out.rows, [=] KOKKOS_FUNCTION(int i) { copy_row(out.row(i), x.row(rows[i]), out.cols); });
}

template <class T>
void scatter_rows(Stream, Mat<T> out, Mat<const T> x, Vec<const std::int32_t> rows) {
  assert(rows.size() == static_cast<std::size_t>(x.rows) && out.cols == x.cols);
  for_rows("scatter_rows", x.rows, [=] KOKKOS_FUNCTION(int i) { copy_row(out.row(rows[i]), x.row(i), x.cols); });
}

#define NANORUN_OPS(T)                                                              \
  template void gather_rows(Stream, Mat<T>, Mat<const T>, Vec<const std::int32_t>); \
  template void scatter_rows(Stream, Mat<T>, Mat<const T>, Vec<const std::int32_t>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
