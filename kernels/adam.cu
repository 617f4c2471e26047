#include "kernels/adam.hpp"

#include <cmath>

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

struct AdamFactors {
  float beta1, rest1, beta2, rest2, lr, root, eps;
};

AdamFactors factors(const AdamOptions& o) {
  const auto t = static_cast<double>(o.t);
  return {static_cast<float>(o.beta1),
          static_cast<float>(1 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2),
          static_cast<float>(o.lr / (1 - std::pow(o.beta1, t))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
          static_cast<float>(o.eps)};
}

template <bool has_copy>
struct Adam {
  float *w, *m, *v;
  const float* g;
  bf16* copy;
  AdamFactors f;

  template <int W>
  __device__ void apply(std::size_t i) const {
    Pack<float, W> weight = load_pack<W>(w + i), mean = load_pack<W>(m + i), square = load_pack<W>(v + i);
    const Pack<float, W> gradient = load_pack<W>(g + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      mean.v[k] = f.beta1 * mean.v[k] + f.rest1 * gradient.v[k];
      square.v[k] = f.beta2 * square.v[k] + f.rest2 * gradient.v[k] * gradient.v[k];
      weight.v[k] -= f.lr * mean.v[k] / (sqrtf(square.v[k]) * f.root + f.eps);
    }
    store_pack(m + i, mean);
    store_pack(v + i, square);
    store_pack(w + i, weight);
    if (has_copy) store_rounded(copy + i, weight);
  }
};

}  // namespace

template <class T>
void adam_update(Stream stream, Vec<T> w, Vec<T> m, Vec<T> v, Vec<const T> g, const AdamOptions& options) {
  const Adam<false> body{w.data(), m.data(), v.data(), g.data(), nullptr, factors(options)};
  launch_elementwise<4>("adam_update", stream, w.size(), body, w.data(), m.data(), v.data(), g.data());
}

void adam_update_with_copy(Stream stream, Vec<float> w, Vec<bf16> copy, Vec<float> m, Vec<float> v, Vec<const float> g,
                           const AdamOptions& options) {
  const Adam<true> body{w.data(), m.data(), v.data(), g.data(), copy.data(), factors(options)};
  launch_elementwise<4>("adam_update_with_copy", stream, w.size(), body, w.data(), m.data(), v.data(), g.data(),
                        copy.data());
}

template void adam_update(Stream, Vec<float>, Vec<float>, Vec<float>, Vec<const float>, const AdamOptions&);

}  // namespace nanorun::kernels::cuda
