#include "kernels/optimizer/adam.hpp"

#include <cassert>

#include "kernels/optimizer/adam_portable.hpp"

namespace nanorun::kernels::portable {

template <class T, class W, class M, class G>
void adam_update(Stream, Vec<std::type_identity_t<W>> w, [[maybe_unused]] Vec<T> copy, Vec<std::type_identity_t<M>> m,
                 Vec<std::type_identity_t<M>> v, Vec<std::type_identity_t<G>> g, const AdamOptions& options,
                 double* squares) {
  static_assert(std::is_same_v<W, T> && std::is_same_v<M, T> && std::is_same_v<G, T>);
  assert(m.size() == w.size() && v.size() == w.size() && g.size() == w.size() && options.t >= 1);
  assert(copy.data() == w.data() && copy.size() == w.size());
  const AdamFactors<T> factors(options);
  const AdamRates<T> rates = adam_rates<T>(options);
  const Sums<2> sums = sum_chunks<2>("adam_update", w.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    return update_elements(&w[first], &m[first], &v[first], &g[first], last - first, factors, rates);
  });
  if (options.clears_gradient) {
    for_chunks("clear_gradient", g.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) g[i] = 0;
    });
  }
  add_to(&squares[0], sums.values[0]);
  add_to(&squares[1], sums.values[1]);
}

#define NANORUN_OPS(T) \
  template void adam_update<T>(Stream, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<T>, const AdamOptions&, double*);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
