#include "kernels/device/magnitude.hpp"

#include <algorithm>

#include "kernels/device/magnitude.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// The matrices of one launch.
struct Magnitudes {
  static constexpr std::size_t most = 32;
  Magnitude<bf16> of[most];
};

/// Blocks of one y work on one matrix.
__global__ void __launch_bounds__(block_threads) max_magnitude_kernel(const __grid_constant__ Magnitudes p) {
  begin_after_previous();
  const Mat<const bf16>& x = p.of[blockIdx.y].x;
  const unsigned vectors = x.cols / 8, count = vectors * x.rows, stride = gridDim.x * block_threads;
  std::uint32_t largest = 0;
#pragma unroll 4
  for (unsigned i = blockIdx.x * block_threads + threadIdx.x; i < count; i += stride) {
    keep_larger(largest, load_vector<8>(x.row(i / vectors) + i % vectors * 8));
  }
  raise_by_block(p.of[blockIdx.y].maximum, largest);
}

}  // namespace

template <class T>
void max_magnitude(Stream stream, std::span<const Magnitude<T>> magnitudes) {
  constexpr int blocks_of_sm = 8;
  for (const Magnitude<T>& of : magnitudes) require_vectors("max_magnitude", of.x);
  while (!magnitudes.empty()) {
    const auto now = magnitudes.first(std::min(magnitudes.size(), Magnitudes::most));
    magnitudes = magnitudes.subspan(now.size());
    Magnitudes p;
    std::ranges::copy(now, p.of);
    const std::size_t size = std::ranges::max(now, {}, [](const Magnitude<T>& of) { return of.x.size(); }).x.size();
    const int count = static_cast<int>(now.size());
    const int blocks = std::clamp(blocks_for(size / 8), 1, ceil_div(sm_count() * blocks_of_sm, count));
    launch("max_magnitude", stream, max_magnitude_kernel, dim3(blocks, count), block_threads, 0, p);
  }
}

template void max_magnitude(Stream, std::span<const Magnitude<bf16>>);

}  // namespace nanorun::kernels::cuda
