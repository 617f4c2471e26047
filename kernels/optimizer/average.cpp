#include "kernels/optimizer/average.hpp"

#include <cassert>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void average_weights(Stream, Vec<std::type_identity_t<acc_t<T>>> average, Vec<const T> w, double rate) {
  static_assert(std::is_same_v<T, acc_t<T>>);
  assert(average.size() == w.size());
  const T share = static_cast<T>(rate);
  const bool first = rate == 1;
  for_chunks("average_weights", w.size(), [=] KOKKOS_FUNCTION(std::size_t begin, std::size_t end) {
    if (first) {
      for (std::size_t i = begin; i < end; ++i) average[i] = w[i];
      return;
    }
#pragma omp simd
    for (std::size_t i = begin; i < end; ++i) average[i] += share * (w[i] - average[i]);
  });
}

template <class T>
void blend_average(Stream, Vec<T> w, Vec<const std::type_identity_t<acc_t<T>>> average, double blend) {
  assert(average.size() == w.size());
  const T share = static_cast<T>(blend), rest = static_cast<T>(1 - blend);
  for_chunks("blend_average", w.size(), [=] KOKKOS_FUNCTION(std::size_t begin, std::size_t end) {
#pragma omp simd
    for (std::size_t i = begin; i < end; ++i) w[i] = blended(w[i], average[i], share, rest);
  });
}

#define NANORUN_OPS(T)                                                    \
  template void average_weights<T>(Stream, Vec<T>, Vec<const T>, double); \
  template void blend_average<T>(Stream, Vec<T>, Vec<const T>, double);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
