#include "kernels/optimizer/clip.hpp"

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

template <class A>
struct AddSquares : SumOfSquares {
  const A* g;
  float scale;

  template <int W>
  __device__ void apply(std::size_t i) {
    const Vector<float, W> x = load_floats<W>(g + i);
#pragma unroll
    for (int k = 0; k < W; ++k) add_square(scale * x.v[k]);
  }
};

/// One warp, whose lanes add up every 32nd square.
__global__ void __launch_bounds__(warp_size) clip_factor_kernel(float* factor, const double* squares, int n, double c) {
  begin_after_previous();
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += warp_size) sum += squares[i];
  const double norm = sqrt(warp_sum(sum));
  if (threadIdx.x == 0) *factor = isfinite(norm) && norm > c ? static_cast<float>(c / norm) : 1;
}

template <class A>
struct ScaleGradients {
  A* g;
  const float* factor;

  template <int W>
  __device__ void apply(std::size_t i) const {
    const float f = *factor;
    if (f == 1) return;
    Vector<float, W> x = load_floats<W>(g + i);
#pragma unroll
    for (int k = 0; k < W; ++k) x.v[k] *= f;
    store_rounded(g + i, x);
  }
};

}  // namespace

template <class A>
void add_squares(Stream stream, double* sum, Vec<const A> g, double gradient_scale) {
  const AddSquares<A> body{{OrderedSum(stream), sum}, g.data(), static_cast<float>(gradient_scale)};
  launch_elementwise<16 / sizeof(A)>("add_squares", stream, g.size(), body, g.data());
}

template <class A>
void clip_factor(Stream stream, A* factor, Vec<const double> squares, double c) {
  launch("clip_factor", stream, clip_factor_kernel, 1, warp_size, 0, factor, squares.data(),
         static_cast<int>(squares.size()), c);
}

template <class A>
void scale_gradients(Stream stream, Vec<A> g, const acc_t<A>* factor) {
  launch_elementwise<16 / sizeof(A)>("scale_gradients", stream, g.size(), ScaleGradients<A>{g.data(), factor},
                                     g.data());
}

template void add_squares(Stream, double*, Vec<const float>, double);
template void add_squares(Stream, double*, Vec<const bf16>, double);
template void clip_factor(Stream, float*, Vec<const double>, double);
template void scale_gradients(Stream, Vec<float>, const float*);
template void scale_gradients(Stream, Vec<bf16>, const float*);

}  // namespace nanorun::kernels::cuda
