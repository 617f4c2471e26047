#include "kernels/device/random.hpp"

#include <cmath>
#include <numbers>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class A>
void fill_uniform(Stream, Vec<A> x, std::uint64_t key, std::uint64_t first, double bound) {
  for_chunks("fill_uniform", x.size(), [=] KOKKOS_FUNCTION(std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) x[k] = static_cast<A>(bound * (2 * unit_uniform(key, first + k) - 1));
  });
}

template <class A>
void fill_normal(Stream, Vec<A> x, std::uint64_t key, std::uint64_t first, double deviation) {
  for_chunks("fill_normal", x.size(), [=] KOKKOS_FUNCTION(std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      const std::uint64_t i = 2 * (first + k);
      x[k] = static_cast<A>(deviation * std::sqrt(-2 * std::log(1 - unit_uniform(key, i))) *
                            std::cos(2 * std::numbers::pi * unit_uniform(key, i + 1)));
    }
  });
}

#define NANORUN_OPS(A)                                                              \
  template void fill_uniform(Stream, Vec<A>, std::uint64_t, std::uint64_t, double); \
  template void fill_normal(Stream, Vec<A>, std::uint64_t, std::uint64_t, double);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
