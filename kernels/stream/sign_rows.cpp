#include "kernels/stream/sign_rows.hpp"

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void sign_rows(Stream, Mat<T> x, Mat<const T> signs, Vec<const std::int32_t> index) {
  for_rows("sign_rows", x.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* sign = signs.row(index[t]);
    T* row = x.row(t);
#pragma omp simd
    for (int j = 0; j < x.cols; ++j) row[j] *= sign[j];
  });
}

#define NANORUN_OPS(T) template void sign_rows(Stream, Mat<T>, Mat<const T>, Vec<const std::int32_t>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
