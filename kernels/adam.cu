#include "kernels/adam.hpp"

#include "kernels/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

struct AdamFactors {
  float beta1, rest1, beta2, rest2, lr, root, eps, gradient_scale, decay;
  bool round_weights, round_moments, clears_gradient;
};

AdamFactors factors(const AdamOptions& o) {
  const AdamCorrection correction = adam_correction(o);
  return {static_cast<float>(o.beta1),
          static_cast<float>(1 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2),
          static_cast<float>(correction.lr),
          static_cast<float>(correction.root),
          static_cast<float>(o.eps),
          static_cast<float>(o.gradient_scale),
          static_cast<float>(o.decay),
          o.round_weights,
          o.round_moments,
          o.clears_gradient};
}

template <int N>
__device__ void store(float* p, const Vector<float, N>& x) {
  store_vector(p, x);
}
template <int N>
__device__ void store(bf16* p, const Vector<float, N>& x) {
  store_rounded(p, x);
}

/// Whether an element is not zero.
template <int N>
__device__ bool any(const Vector<float, N>& x) {
  bool any = false;
#pragma unroll
  for (int k = 0; k < N; ++k) any = any || x.v[k] != 0;
  return any;
}

/// A, M: of the masters, which are the copy itself where they have its type, and of the moments.
template <class T, class A, class M>
struct Adam {
  SumOfSquares gradients, weights;
  A* w;
  T* copy;
  M *m, *v;
  float* g;
  AdamFactors f;

  template <int W>
  __device__ void apply(std::size_t i) {
    Vector<float, W> weight = load_floats<W>(w + i), mean = load_floats<W>(m + i), square = load_floats<W>(v + i);
    const Vector<float, W> raw = load_vector<W>(g + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const float gradient = f.gradient_scale * raw.v[k];
      mean.v[k] = f.beta1 * mean.v[k] + f.rest1 * gradient;
      square.v[k] = f.beta2 * square.v[k] + f.rest2 * gradient * gradient;
      const float u = f.lr * mean.v[k] / (sqrtf(square.v[k]) * f.root + f.eps);
      weight.v[k] -= u + (u * weight.v[k] > 0 ? f.decay * weight.v[k] : 0);
      gradients.add_square(gradient);
    }
    if (f.round_moments) mean = to_floats(round_to_bf16(mean)), square = to_floats(round_to_bf16(square));
    if (f.round_weights) weight = to_floats(round_to_bf16(weight));
#pragma unroll
    for (int k = 0; k < W; ++k) weights.add_square(weight.v[k]);
    // Most rows of a table have no gradient: they cost no store.
    if (f.clears_gradient && any(raw)) store_vector(g + i, Vector<float, W>{});
    store(m + i, mean);
    store(v + i, square);
    store(w + i, weight);
    if constexpr (!std::is_same_v<T, A>) store(copy + i, weight);
  }

  __device__ void finish() const {
    gradients.total.add({gradients.sum, weights.sum}, {gradients.squares, weights.squares});
  }
};

}  // namespace

template <class T, class W, class M>
void adam_update(Stream stream, Vec<std::type_identity_t<W>> w, Vec<T> copy, Vec<std::type_identity_t<M>> m,
                 Vec<std::type_identity_t<M>> v, Vec<acc_t<T>> g, const AdamOptions& options, double* squares) {
  // Accesses of 16 bytes at least, also of what is kept in bf16.
  constexpr int width = std::is_same_v<W, bf16> || std::is_same_v<M, bf16> ? 8 : 4;
  const OrderedSum total(stream);
  const Adam<T, W, M> body{{total, squares}, {total, squares + 1}, w.data(), copy.data(), m.data(), v.data(),
                           g.data(),         factors(options)};
  launch_elementwise<width>("adam_update", stream, w.size(), body, w.data(), copy.data(), m.data(), v.data(), g.data());
}

#define NANORUN_INSTANTIATE(T, W, M) \
  template void adam_update<T, W, M>(Stream, Vec<W>, Vec<T>, Vec<M>, Vec<M>, Vec<float>, const AdamOptions&, double*);
NANORUN_INSTANTIATE(float, float, float)
NANORUN_INSTANTIATE(bf16, float, float)
NANORUN_INSTANTIATE(bf16, float, bf16)
NANORUN_INSTANTIATE(bf16, bf16, float)
NANORUN_INSTANTIATE(bf16, bf16, bf16)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::cuda
