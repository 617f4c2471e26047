#include "kernels/device/magnitude.hpp"

#include <cmath>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

template <class T>
void raise_maximum(T* maximum, Mat<const T> x) {
  show_life();
  T largest = 0;
  const auto row_maximum = [=] KOKKOS_FUNCTION(int i, T& so_far) {
    const T* const row = x.row(i);
    T in_row = 0;
#pragma omp simd reduction(max : in_row)
    for (int j = 0; j < x.cols; ++j) in_row = std::abs(row[j]) > in_row ? std::abs(row[j]) : in_row;
    so_far = in_row > so_far ? in_row : so_far;
  };
  Kokkos::parallel_reduce("max_magnitude", Kokkos::RangePolicy<Exec>(0, x.rows), row_maximum, Kokkos::Max<T>(largest));
  for_rows("keep_maximum", 1, [=] KOKKOS_FUNCTION(int) { *maximum = largest > *maximum ? largest : *maximum; });
}

}  // namespace

template <class T>
void max_magnitude(Stream, std::span<const Magnitude<T>> magnitudes) {
  for (const Magnitude<T>& of : magnitudes) raise_maximum(of.maximum, of.x);
}

#define NANORUN_OPS(T) template void max_magnitude(Stream, std::span<const Magnitude<T>>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
