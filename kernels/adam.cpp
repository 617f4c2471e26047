#include "kernels/adam.hpp"

#include <cassert>
#include <cmath>

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void adam_update(Stream, Vec<acc_t<T>> w, [[maybe_unused]] Vec<T> copy, Vec<acc_t<T>> m, Vec<acc_t<T>> v,
                 Vec<const acc_t<T>> g, const AdamOptions& options, double* squares) {
  assert(m.size() == w.size() && v.size() == w.size() && g.size() == w.size() && options.t >= 1);
  assert(copy.data() == w.data() && copy.size() == w.size());
  const T beta1 = static_cast<T>(options.beta1), rest1 = static_cast<T>(1 - options.beta1);
  const T beta2 = static_cast<T>(options.beta2), rest2 = static_cast<T>(1 - options.beta2);
  const AdamCorrection correction = adam_correction(options);
  const T lr = static_cast<T>(correction.lr), root = static_cast<T>(correction.root);
  const T eps = static_cast<T>(options.eps), scale = static_cast<T>(options.gradient_scale);
  const T decay = static_cast<T>(options.decay);
  const auto update = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double gradients = 0, weights = 0;
#pragma omp simd reduction(+ : gradients, weights)
    for (std::size_t i = first; i < last; ++i) {
      const T gradient = scale * g[i];
      m[i] = beta1 * m[i] + rest1 * gradient;
      v[i] = beta2 * v[i] + rest2 * gradient * gradient;
      const T u = lr * m[i] / (std::sqrt(v[i]) * root + eps);
      w[i] -= u + (u * w[i] > 0 ? decay * w[i] : T(0));
      gradients += square(gradient);
      weights += square(w[i]);
    }
    return Sums<2>{{gradients, weights}};
  };
  const Sums<2> sums = sum_chunks<2>("adam_update", w.size(), update);
  add_to(&squares[0], sums.values[0]);
  add_to(&squares[1], sums.values[1]);
}

#define NANORUN_INSTANTIATE(T) \
  template void adam_update<T>(Stream, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<const T>, const AdamOptions&, double*);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
