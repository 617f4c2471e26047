#pragma once
// The arithmetic of Adam, alike for all kernels that update: on the same numbers they leave the same bits.

#include "kernels/device/vec.cuh"
#include "kernels/optimizer/adam.hpp"

namespace nanorun::kernels::cuda {

/// W elements of masters and moments, in float.
template <int W>
struct AdamElements {
  Vector<float, W> weight, mean, square;

  /// One update, with gradients that are scaled already; rounds as the results are stored.
  __device__ void update(const Vector<float, W>& gradient, const AdamFactors<float>& f, const AdamRates<float>& rates) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      mean.v[k] = f.beta1 * mean.v[k] + f.rest1 * gradient.v[k];
      square.v[k] = f.beta2 * square.v[k] + f.rest2 * gradient.v[k] * gradient.v[k];
      const float root = sqrt_fast(fmaxf(square.v[k], smallest_square)) * rates.root_factor;
      const float u = rates.lr * mean.v[k] * reciprocal_fast(root + f.eps);
      weight.v[k] -= u + (!f.cautious || u * weight.v[k] > 0 ? rates.decay * weight.v[k] : 0);
    }
    if (f.round_moments) {
      round(mean);
      round(square);
    }
    if (f.round_weights) round(weight);
  }

  template <class A, class M>
  static __device__ AdamElements load(const A* w, const M* m, const M* v) {
    return {load_floats<W>(w), load_floats<W>(m), load_floats<W>(v)};
  }
  /// Where the weights are the masters, copy is w itself.
  template <class T, class A, class M>
  __device__ void store(A* w, T* copy, M* m, M* v) const {
    store_rounded(m, mean);
    store_rounded(v, square);
    store_rounded(w, weight);
    if constexpr (!std::is_same_v<T, A>) store_rounded(copy, weight);
  }

 private:
  /// The fast root takes smaller numbers for zero. Where eps is no larger than its root, they would move weights far.
  static constexpr float smallest_square = 0x1p-126f;

  /// To the nearest bf16, two at a time.
  static __device__ void round(Vector<float, W>& x) {
    if constexpr (W % 2 != 0) {
      x = to_floats(round_to_bf16(x));
    } else {
#pragma unroll
      for (int k = 0; k < W; k += 2) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x.v[k], x.v[k + 1]);
        const auto bits = *reinterpret_cast<const std::uint32_t*>(&pair);
        x.v[k] = __uint_as_float(bits << 16);
        x.v[k + 1] = __uint_as_float(bits & 0xFFFF0000u);
      }
    }
  }
};

/// Whether an element is not zero.
template <int N>
__device__ bool any(const Vector<float, N>& x) {
  bool any = false;
#pragma unroll
  for (int k = 0; k < N; ++k) any = any || x.v[k] != 0;
  return any;
}

}  // namespace nanorun::kernels::cuda
