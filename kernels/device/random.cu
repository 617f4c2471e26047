#include "kernels/device/random.hpp"

#include <cmath>
#include <numbers>

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

struct Uniform {
  float* x;
  std::uint64_t key, first;
  double bound;
  template <int W>
  __device__ void apply(std::size_t k) const {
    x[k] = static_cast<float>(bound * (2 * unit_uniform(key, first + k) - 1));
  }
};

struct Normal {
  float* x;
  std::uint64_t key, first;
  double deviation;
  template <int W>
  __device__ void apply(std::size_t k) const {
    const std::uint64_t i = 2 * (first + k);
    x[k] = static_cast<float>(deviation * sqrt(-2 * log(1 - unit_uniform(key, i))) *
                              cos(2 * std::numbers::pi * unit_uniform(key, i + 1)));
  }
};

}  // namespace

template <class A>
void fill_uniform(Stream stream, Vec<A> x, std::uint64_t key, std::uint64_t first, double bound) {
  launch_elementwise<1>("fill_uniform", stream, x.size(), Uniform{x.data(), key, first, bound}, x.data());
}

template <class A>
void fill_normal(Stream stream, Vec<A> x, std::uint64_t key, std::uint64_t first, double deviation) {
  launch_elementwise<1>("fill_normal", stream, x.size(), Normal{x.data(), key, first, deviation}, x.data());
}

template void fill_uniform(Stream, Vec<float>, std::uint64_t, std::uint64_t, double);
template void fill_normal(Stream, Vec<float>, std::uint64_t, std::uint64_t, double);

}  // namespace nanorun::kernels::cuda
