#include "kernels/optimizer/average.hpp"

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

template <class T>
struct AverageWeights {
  float* average;
  const T* w;
  float rate;

  template <int W>
  __device__ void apply(std::size_t i) const {
    const Vector<float, W> weight = load_floats<W>(w + i);
    if (rate == 1) {  // the average is not defined yet
      store_vector(average + i, weight);
      return;
    }
    Vector<float, W> mean = load_vector<W>(average + i);
#pragma unroll
    for (int k = 0; k < W; ++k) mean.v[k] += rate * (weight.v[k] - mean.v[k]);
    store_vector(average + i, mean);
  }
};

template <class T>
struct BlendAverage {
  T* w;
  const float* average;
  float share, rest;

  template <int W>
  __device__ void apply(std::size_t i) const {
    Vector<float, W> weight = load_floats<W>(w + i);
    const Vector<float, W> mean = load_vector<W>(average + i);
#pragma unroll
    for (int k = 0; k < W; ++k) weight.v[k] = blended(weight.v[k], mean.v[k], share, rest);
    store_rounded(w + i, weight);
  }
};

}  // namespace

template <class T>
void average_weights(Stream stream, Vec<std::type_identity_t<acc_t<T>>> average, Vec<const T> w, double rate) {
  const AverageWeights<T> body{average.data(), w.data(), static_cast<float>(rate)};
  launch_elementwise<4>("average_weights", stream, w.size(), body, average.data(), w.data());
}

template <class T>
void blend_average(Stream stream, Vec<T> w, Vec<const std::type_identity_t<acc_t<T>>> average, double blend) {
  const BlendAverage<T> body{w.data(), average.data(), static_cast<float>(blend), static_cast<float>(1 - blend)};
  launch_elementwise<4>("blend_average", stream, w.size(), body, w.data(), average.data());
}

template void average_weights<float>(Stream, Vec<float>, Vec<const float>, double);
template void average_weights<bf16>(Stream, Vec<float>, Vec<const bf16>, double);
template void blend_average<float>(Stream, Vec<float>, Vec<const float>, double);
template void blend_average<bf16>(Stream, Vec<bf16>, Vec<const float>, double);

}  // namespace nanorun::kernels::cuda
