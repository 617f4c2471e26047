#include "kernels/adam.hpp"

#include <cassert>
#include <cmath>

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

template <class T>
KOKKOS_INLINE_FUNCTION T stored(T x, bool round) {
  return round ? static_cast<T>(round_to_bf16(static_cast<float>(x))) : x;
}

}  // namespace

template <class T, class W, class M>
void adam_update(Stream, Vec<std::type_identity_t<W>> w, [[maybe_unused]] Vec<T> copy, Vec<std::type_identity_t<M>> m,
                 Vec<std::type_identity_t<M>> v, Vec<acc_t<T>> g, const AdamOptions& options, double* squares) {
  static_assert(std::is_same_v<W, T> && std::is_same_v<M, T>);
  assert(m.size() == w.size() && v.size() == w.size() && g.size() == w.size() && options.t >= 1);
  assert(copy.data() == w.data() && copy.size() == w.size());
  const T beta1 = static_cast<T>(options.beta1), rest1 = static_cast<T>(1 - options.beta1);
  const T beta2 = static_cast<T>(options.beta2), rest2 = static_cast<T>(1 - options.beta2);
  const AdamCorrection correction = adam_correction(options);
  const T lr = static_cast<T>(correction.lr), root = static_cast<T>(correction.root);
  const T eps = static_cast<T>(options.eps), scale = static_cast<T>(options.gradient_scale);
  const T decay = static_cast<T>(options.decay);
  const bool round_weights = options.round_weights, round_moments = options.round_moments;
  const auto update = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double gradients = 0, weights = 0;
#pragma omp simd reduction(+ : gradients, weights)
    for (std::size_t i = first; i < last; ++i) {
      const T gradient = scale * g[i];
      const T mean = beta1 * m[i] + rest1 * gradient;
      const T mean_square = beta2 * v[i] + rest2 * gradient * gradient;
      const T u = lr * mean / (std::sqrt(mean_square) * root + eps);
      m[i] = stored(mean, round_moments);
      v[i] = stored(mean_square, round_moments);
      w[i] = stored(w[i] - (u + (u * w[i] > 0 ? decay * w[i] : T(0))), round_weights);
      gradients += square(gradient);
      weights += square(w[i]);
    }
    return Sums<2>{{gradients, weights}};
  };
  const Sums<2> sums = sum_chunks<2>("adam_update", w.size(), update);
  if (options.clears_gradient) {
    for_chunks("clear_gradient", g.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) g[i] = 0;
    });
  }
  add_to(&squares[0], sums.values[0]);
  add_to(&squares[1], sums.values[1]);
}

#define NANORUN_INSTANTIATE(T) \
  template void adam_update<T>(Stream, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<T>, const AdamOptions&, double*);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
