// The elementwise ops of Muon: Nesterov momentum and the update of the weights.

#include "kernels/muon.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

struct NesterovMomentum : SumOfSquares {
  float *g, *buf;
  float m, rest, scale;
  template <int W>
  __device__ void apply(std::size_t i) {
    Vector<float, W> gradient = load_vector<W>(g + i), momentum = load_vector<W>(buf + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      gradient.v[k] *= scale;
      add_square(gradient.v[k]);
      momentum.v[k] = m * momentum.v[k] + rest * gradient.v[k];
      gradient.v[k] = rest * gradient.v[k] + m * momentum.v[k];
    }
    store_vector(buf + i, momentum);
    store_vector(g + i, gradient);
  }
};

template <class T>
struct AddScaled : SumOfSquares {
  float* w;
  T* copy;
  const float* x;
  float alpha;
  template <int W>
  __device__ void apply(std::size_t i) {
    Vector<float, W> weight = load_vector<W>(w + i);
    const Vector<float, W> term = load_vector<W>(x + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      weight.v[k] += alpha * term.v[k];
      add_square(weight.v[k]);
    }
    store_vector(w + i, weight);
    if constexpr (!std::is_same_v<T, float>) store_rounded(copy + i, weight);
  }
};

template <class T>
struct AddScaledWithDecay : SumOfSquares {
  float* w;
  T* copy;
  const float* x;
  float lr, decay;
  template <int W>
  __device__ void apply(std::size_t i) {
    Vector<float, W> weight = load_vector<W>(w + i);
    const Vector<float, W> term = load_vector<W>(x + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      weight.v[k] -= lr * term.v[k] + (term.v[k] * weight.v[k] >= 0 ? decay * weight.v[k] : 0);
      add_square(weight.v[k]);
    }
    store_vector(w + i, weight);
    if constexpr (!std::is_same_v<T, float>) store_rounded(copy + i, weight);
  }
};

}  // namespace

template <class A>
void nesterov_momentum(Stream stream, Vec<A> g, Vec<A> buf, double momentum, double gradient_scale, double* squares) {
  const NesterovMomentum body{{squares},
                              g.data(),
                              buf.data(),
                              static_cast<float>(momentum),
                              static_cast<float>(1 - momentum),
                              static_cast<float>(gradient_scale)};
  launch_elementwise<4>("nesterov_momentum", stream, g.size(), body, g.data(), buf.data());
}

template <class T>
void add_scaled(Stream stream, Vec<acc_t<T>> w, Vec<T> copy, Vec<const acc_t<T>> x, double alpha, double* squares) {
  const AddScaled<T> body{{squares}, w.data(), copy.data(), x.data(), static_cast<float>(alpha)};
  launch_elementwise<4>("add_scaled", stream, w.size(), body, w.data(), copy.data(), x.data());
}

template <class T>
void add_scaled_with_decay(Stream stream, Vec<acc_t<T>> w, Vec<T> copy, Vec<const acc_t<T>> x, double lr, double decay,
                           double* squares) {
  const AddScaledWithDecay<T> body{
      {squares}, w.data(), copy.data(), x.data(), static_cast<float>(lr), static_cast<float>(decay)};
  launch_elementwise<4>("add_scaled_with_decay", stream, w.size(), body, w.data(), copy.data(), x.data());
}

template void nesterov_momentum(Stream, Vec<float>, Vec<float>, double, double, double*);
template void add_scaled<float>(Stream, Vec<float>, Vec<float>, Vec<const float>, double, double*);
template void add_scaled<bf16>(Stream, Vec<float>, Vec<bf16>, Vec<const float>, double, double*);
template void add_scaled_with_decay<float>(Stream, Vec<float>, Vec<float>, Vec<const float>, double, double, double*);
template void add_scaled_with_decay<bf16>(Stream, Vec<float>, Vec<bf16>, Vec<const float>, double, double, double*);

}  // namespace nanorun::kernels::cuda
