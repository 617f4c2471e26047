#include "kernels/adam.hpp"

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

struct AdamFactors {
  float beta1, rest1, beta2, rest2, lr, root, eps, gradient_scale, decay;
};

AdamFactors factors(const AdamOptions& o) {
  const AdamCorrection correction = adam_correction(o);
  return {static_cast<float>(o.beta1),     static_cast<float>(1 - o.beta1),      static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2), static_cast<float>(correction.lr),    static_cast<float>(correction.root),
          static_cast<float>(o.eps),       static_cast<float>(o.gradient_scale), static_cast<float>(o.decay)};
}

template <class T>
struct Adam {
  SumOfSquares gradients, weights;
  float* w;
  T* copy;
  float *m, *v;
  const float* g;
  AdamFactors f;

  template <int W>
  __device__ void apply(std::size_t i) {
    Vector<float, W> weight = load_vector<W>(w + i), mean = load_vector<W>(m + i), square = load_vector<W>(v + i);
    const Vector<float, W> raw = load_vector<W>(g + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const float gradient = f.gradient_scale * raw.v[k];
      mean.v[k] = f.beta1 * mean.v[k] + f.rest1 * gradient;
      square.v[k] = f.beta2 * square.v[k] + f.rest2 * gradient * gradient;
      const float u = f.lr * mean.v[k] / (sqrtf(square.v[k]) * f.root + f.eps);
      weight.v[k] -= u + (u * weight.v[k] > 0 ? f.decay * weight.v[k] : 0);
      gradients.add_square(gradient);
      weights.add_square(weight.v[k]);
    }
    store_vector(m + i, mean);
    store_vector(v + i, square);
    store_vector(w + i, weight);
    if constexpr (!std::is_same_v<T, float>) store_rounded(copy + i, weight);
  }

  __device__ void finish() const {
    gradients.finish();
    weights.finish();
  }
};

}  // namespace

template <class T>
void adam_update(Stream stream, Vec<acc_t<T>> w, Vec<T> copy, Vec<acc_t<T>> m, Vec<acc_t<T>> v, Vec<const acc_t<T>> g,
                 const AdamOptions& options, double* squares) {
  const Adam<T> body{{squares}, {squares + 1}, w.data(), copy.data(), m.data(), v.data(), g.data(), factors(options)};
  launch_elementwise<4>("adam_update", stream, w.size(), body, w.data(), copy.data(), m.data(), v.data(), g.data());
}

template void adam_update<float>(Stream, Vec<float>, Vec<float>, Vec<float>, Vec<float>, Vec<const float>,
                                 const AdamOptions&, double*);
template void adam_update<bf16>(Stream, Vec<float>, Vec<bf16>, Vec<float>, Vec<float>, Vec<const float>,
                                const AdamOptions&, double*);

}  // namespace nanorun::kernels::cuda
