// The elementwise part of Muon.

#include "kernels/muon.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

struct NesterovMomentum {
  float *g, *buf;
  float m, rest;
  template <int W>
  __device__ void apply(std::size_t i) const {
    Pack<float, W> gradient = load_pack<W>(g + i), momentum = load_pack<W>(buf + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      momentum.v[k] = m * momentum.v[k] + rest * gradient.v[k];
      gradient.v[k] = rest * gradient.v[k] + m * momentum.v[k];
    }
    store_pack(buf + i, momentum);
    store_pack(g + i, gradient);
  }
};

template <bool has_copy>
struct AddScaled {
  float* w;
  const float* x;
  bf16* copy;
  float alpha;
  template <int W>
  __device__ void apply(std::size_t i) const {
    Pack<float, W> weight = load_pack<W>(w + i);
    const Pack<float, W> term = load_pack<W>(x + i);
#pragma unroll
    for (int k = 0; k < W; ++k) weight.v[k] += alpha * term.v[k];
    store_pack(w + i, weight);
    if (has_copy) store_rounded(copy + i, weight);
  }
};

}  // namespace

template <class T>
void nesterov_momentum(Stream stream, Vec<T> g, Vec<T> buf, double momentum) {
  const NesterovMomentum body{g.data(), buf.data(), static_cast<float>(momentum), static_cast<float>(1 - momentum)};
  launch_elementwise<4>("nesterov_momentum", stream, g.size(), body, g.data(), buf.data());
}

template <class T>
void add_scaled(Stream stream, Vec<T> w, Vec<const T> x, double alpha) {
  const AddScaled<false> body{w.data(), x.data(), nullptr, static_cast<float>(alpha)};
  launch_elementwise<4>("add_scaled", stream, w.size(), body, w.data(), x.data());
}

void add_scaled_with_copy(Stream stream, Vec<float> w, Vec<bf16> copy, Vec<const float> x, double alpha) {
  const AddScaled<true> body{w.data(), x.data(), copy.data(), static_cast<float>(alpha)};
  launch_elementwise<4>("add_scaled_with_copy", stream, w.size(), body, w.data(), x.data(), copy.data());
}

template void nesterov_momentum(Stream, Vec<float>, Vec<float>, double);
template void add_scaled(Stream, Vec<float>, Vec<const float>, double);

}  // namespace nanorun::kernels::cuda
