#include "kernels/device/fill.hpp"

#include <cassert>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void fill(Stream, Vec<T> x, double value) {
  const T v = static_cast<T>(value);
  for_chunks("fill", x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) x[i] = v;
  });
}

template <class T, class X>
void round_to(Stream, Vec<T> out, Vec<const std::type_identity_t<X>> x, bool) {
  static_assert(std::is_same_v<T, X>);
  assert(out.size() == x.size());
  if (out.data() == x.data()) return;
  for_chunks("round_to", x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) out[i] = x[i];
  });
}

template <class T>
void round_as_bf16(Stream, Vec<T> x) {
  for_chunks("round_as_bf16", x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) x[i] = static_cast<T>(round_to_bf16(static_cast<float>(x[i])));
  });
}

template <class T>
void add(Stream, Mat<T> out, Mat<const T> x) {
  for_rows("add", out.rows, [=] KOKKOS_FUNCTION(int i) {
    T* o = out.row(i);
    const T* r = x.row(i);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) o[j] += r[j];
  });
}

template <class T>
void move_sum(Stream, Vec<T> out, Vec<T> x) {
  assert(out.size() == x.size());
  for_chunks("move_sum", x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      out[i] += x[i];
      x[i] = 0;
    }
  });
}

#define NANORUN_OPS(T)                                              \
  template void fill(Stream, Vec<T>, double);                       \
  template void round_to<T, T>(Stream, Vec<T>, Vec<const T>, bool); \
  template void round_as_bf16(Stream, Vec<T>);                      \
  template void add(Stream, Mat<T>, Mat<const T>);                  \
  template void move_sum(Stream, Vec<T>, Vec<T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)
template void fill(Stream, Vec<std::int32_t>, double);

}  // namespace nanorun::kernels::portable
