#include "kernels/adam.hpp"

#include <cassert>
#include <cmath>

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

template <class T>
void adam_update(Stream, Vec<T> w, Vec<T> m, Vec<T> v, Vec<const T> g, const AdamOptions& options) {
  assert(m.size() == w.size() && v.size() == w.size() && g.size() == w.size() && options.t >= 1);
  const T beta1 = static_cast<T>(options.beta1), rest1 = static_cast<T>(1 - options.beta1);
  const T beta2 = static_cast<T>(options.beta2), rest2 = static_cast<T>(1 - options.beta2);
  const auto t = static_cast<double>(options.t);
  const T lr = static_cast<T>(options.lr / (1 - std::pow(options.beta1, t)));
  const T root = static_cast<T>(1 / std::sqrt(1 - std::pow(options.beta2, t)));
  const T eps = static_cast<T>(options.eps);
  for_chunks("adam_update", w.size(), [=](std::size_t first, std::size_t last) {
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      m[i] = beta1 * m[i] + rest1 * g[i];
      v[i] = beta2 * v[i] + rest2 * g[i] * g[i];
      w[i] -= lr * m[i] / (std::sqrt(v[i]) * root + eps);
    }
  });
}

template void adam_update(Stream, Vec<float>, Vec<float>, Vec<float>, Vec<const float>, const AdamOptions&);
template void adam_update(Stream, Vec<double>, Vec<double>, Vec<double>, Vec<const double>, const AdamOptions&);

}  // namespace nanorun::kernels::portable
