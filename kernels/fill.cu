#include <algorithm>

#include "kernels/error.cuh"
#include "kernels/fill.hpp"

namespace nanorun::kernels::cuda {

namespace {

template <class T>
__global__ void fill_kernel(T* x, std::size_t n, T value) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    x[i] = value;
  }
}

}  // namespace

template <class T>
void fill(Stream stream, Vec<T> x, double value) {
  if (x.empty()) return;
  constexpr int threads = 256;
  const int blocks = static_cast<int>(std::min<std::size_t>((x.size() + threads - 1) / threads, 132 * 16));
  fill_kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream.handle)>>>(x.data(), x.size(),
                                                                                static_cast<T>(value));
  check_launch("fill");
}

template void fill(Stream, Vec<float>, double);

}  // namespace nanorun::kernels::cuda
