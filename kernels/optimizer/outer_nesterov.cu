#include "kernels/optimizer/outer_nesterov.hpp"

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

template <class T>
struct OuterNesterov {
  T* w;
  float *w_outer, *u;
  float rate, m;

  template <int W>
  __device__ void apply(std::size_t i) const {
    const Vector<float, W> inner = load_floats<W>(w + i);
    Vector<float, W> outer = load_vector<W>(w_outer + i), momentum = load_vector<W>(u + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const float d = outer.v[k] - inner.v[k];
      momentum.v[k] = m * momentum.v[k] + d;
      outer.v[k] -= rate * (d + m * momentum.v[k]);
    }
    store_vector(u + i, momentum);
    store_vector(w_outer + i, outer);
    store_rounded(w + i, outer);
  }
};

}  // namespace

template <class T>
void outer_nesterov(Stream stream, Vec<T> w, Vec<std::type_identity_t<acc_t<T>>> w_outer,
                    Vec<std::type_identity_t<acc_t<T>>> u, double lr, double momentum) {
  const OuterNesterov<T> body{w.data(), w_outer.data(), u.data(), static_cast<float>(lr), static_cast<float>(momentum)};
  launch_elementwise<4>("outer_nesterov", stream, w.size(), body, w.data(), w_outer.data(), u.data());
}

template void outer_nesterov<float>(Stream, Vec<float>, Vec<float>, Vec<float>, double, double);
template void outer_nesterov<bf16>(Stream, Vec<bf16>, Vec<float>, Vec<float>, double, double);

}  // namespace nanorun::kernels::cuda
