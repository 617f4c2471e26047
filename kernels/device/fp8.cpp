#include "kernels/device/fp8.hpp"

#include <cassert>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

template <float (*round)(float), class T>
void quantise(const char* label, Vec<T> out, Vec<const T> x, double scale) {
  assert(out.size() == x.size());
  const auto factor = static_cast<float>(scale);
  for_chunks(label, x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) out[i] = round(factor * static_cast<float>(x[i]));
  });
}

}  // namespace

template <class T>
void quantise_e4m3(Vec<T> out, Vec<const T> x, double scale) {
  quantise<round_to_e4m3>("quantise_e4m3", out, x, scale);
}

template <class T>
void quantise_e5m2(Vec<T> out, Vec<const T> x, double scale) {
  quantise<round_to_e5m2>("quantise_e5m2", out, x, scale);
}

#define NANORUN_OPS(T)                                             \
  template void quantise_e4m3(Vec<T>, Vec<const T>, double scale); \
  template void quantise_e5m2(Vec<T>, Vec<const T>, double scale);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
