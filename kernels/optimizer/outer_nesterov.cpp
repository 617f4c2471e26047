#include "kernels/optimizer/outer_nesterov.hpp"

#include <cassert>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void outer_nesterov(Stream, Vec<T> w, Vec<std::type_identity_t<acc_t<T>>> w_outer,
                    Vec<std::type_identity_t<acc_t<T>>> u, double lr, double momentum) {
  static_assert(std::is_same_v<T, acc_t<T>>);
  assert(w_outer.size() == w.size() && u.size() == w.size());
  const T rate = static_cast<T>(lr), m = static_cast<T>(momentum);
  for_chunks("outer_nesterov", w.size(), [=] KOKKOS_FUNCTION(std::size_t begin, std::size_t end) {
#pragma omp simd
    for (std::size_t i = begin; i < end; ++i) {
      const T d = w_outer[i] - w[i];
      u[i] = m * u[i] + d;
      w_outer[i] -= rate * (d + m * u[i]);
      w[i] = w_outer[i];
    }
  });
}

#define NANORUN_OPS(T) template void outer_nesterov<T>(Stream, Vec<T>, Vec<T>, Vec<T>, double, double);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
