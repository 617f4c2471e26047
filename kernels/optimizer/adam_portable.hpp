#pragma once
// The arithmetic of Adam in the portable implementations.

#include <cmath>

#include "kernels/device/portable.hpp"
#include "kernels/optimizer/adam.hpp"

namespace nanorun::kernels::portable {

template <class T>
KOKKOS_INLINE_FUNCTION T stored(T x, bool round) {
  return round ? static_cast<T>(round_to_bf16(static_cast<float>(x))) : x;
}

/// One update of n elements, with the gradients g, or without where g is null. Returns the sums of squares of scaled
/// gradients and of new weights.
template <class T>
KOKKOS_INLINE_FUNCTION Sums<2> update_elements(T* w, T* m, T* v, const T* g, std::size_t n, const AdamFactors<T>& f,
                                               const AdamRates<T>& rates) {
  double gradients = 0, weights = 0;
#pragma omp simd reduction(+ : gradients, weights)
  for (std::size_t i = 0; i < n; ++i) {
    const T gradient = g ? f.gradient_scale * g[i] : T(0);
    const T mean = f.beta1 * m[i] + f.rest1 * gradient;
    const T mean_square = f.beta2 * v[i] + f.rest2 * gradient * gradient;
    const T u = rates.lr * mean / (std::sqrt(mean_square) * rates.root_factor + f.eps);
    m[i] = stored(mean, f.round_moments);
    v[i] = stored(mean_square, f.round_moments);
    w[i] = stored(w[i] - (u + (!f.cautious || u * w[i] > 0 ? rates.decay * w[i] : T(0))), f.round_weights);
    gradients += square(gradient);
    weights += square(w[i]);
  }
  return {{gradients, weights}};
}

}  // namespace nanorun::kernels::portable
