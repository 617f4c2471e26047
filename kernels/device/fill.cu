#include "kernels/device/fill.hpp"

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

template <class T>
struct Fill {
  T* x;
  T value;
  template <int W>
  __device__ void apply(std::size_t i) const {
    Vector<T, W> p;
#pragma unroll
    for (int k = 0; k < W; ++k) p.v[k] = value;
    store_vector(x + i, p);
  }
};

template <class T, class X>
struct RoundTo {
  T* out;
  const X* x;
  bool truncates;
  template <int W>
  __device__ void apply(std::size_t i) const {
    const Vector<float, W> p = load_floats<W>(x + i);
    if constexpr (std::is_same_v<T, float>) {
      store_vector(out + i, p);
    } else {
      store_vector(out + i, narrow_to_bf16(p, truncates));
    }
  }
};

struct RoundAsBf16 {
  float* x;
  template <int W>
  __device__ void apply(std::size_t i) const {
    store_vector(x + i, to_floats(round_to_bf16(load_vector<W>(x + i))));
  }
};

struct MoveSum {
  float *out, *x;
  template <int W>
  __device__ void apply(std::size_t i) const {
    const Vector<float, W> term = load_vector<W>(x + i);
    bool any = false;
#pragma unroll
    for (int k = 0; k < W; ++k) any = any || term.v[k] != 0;
    if (!any) return;
    Vector<float, W> sum = load_vector<W>(out + i);
#pragma unroll
    for (int k = 0; k < W; ++k) sum.v[k] += term.v[k];
    store_vector(out + i, sum);
    store_vector(x + i, Vector<float, W>{});
  }
};

template <class T, class X>
__global__ void __launch_bounds__(block_threads) add_kernel(Mat<T> out, Mat<const X> x) {
  begin_after_previous();
  const unsigned vectors = out.cols / 8;
  const unsigned total = vectors * out.rows;
  for (unsigned k = blockIdx.x * block_threads + threadIdx.x; k < total; k += gridDim.x * block_threads) {
    const int row = k / vectors, col = k % vectors * 8;
    T* to = out.row(row) + col;
    Vector<float, 8> sum = load_floats<8>(to);
    const Vector<float, 8> term = load_floats<8>(x.row(row) + col);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum.v[i] += term.v[i];
    store_rounded(to, sum);
  }
}

template <class T, class X>
void launch_add(Stream stream, Mat<T> out, Mat<const X> x) {
  require_vectors("add", out);
  require_vectors("add", x);
  if (out.size() == 0) return;
  launch("add", stream, add_kernel<T, X>, blocks_for(out.size() / 8), block_threads, 0, out, x);
}

}  // namespace

template <class T>
void fill(Stream stream, Vec<T> x, double value) {
  constexpr int width = 16 / sizeof(T);
  if constexpr (std::is_same_v<T, bf16>) {
    const auto rounded = __nv_bfloat16_raw(__float2bfloat16(static_cast<float>(value)));
    auto* const bits = reinterpret_cast<std::uint16_t*>(x.data());
    launch_elementwise<width>("fill", stream, x.size(), Fill<std::uint16_t>{bits, rounded.x}, bits);
  } else {
    launch_elementwise<width>("fill", stream, x.size(), Fill<T>{x.data(), static_cast<T>(value)}, x.data());
  }
}

template <class T, class X>
void round_to(Stream stream, Vec<T> out, Vec<const std::type_identity_t<X>> x, bool truncates) {
  if constexpr (std::is_same_v<T, X>) {
    if (out.data() == x.data()) return;
  }
  const RoundTo<T, X> body{out.data(), x.data(), truncates};
  launch_elementwise<4>("round_to", stream, x.size(), body, out.data(), x.data());
}

template <class T>
void round_as_bf16(Stream stream, Vec<T> x) {
  launch_elementwise<4>("round_as_bf16", stream, x.size(), RoundAsBf16{x.data()}, x.data());
}

template <class T>
void add(Stream stream, Mat<T> out, Mat<const T> x) {
  launch_add<T, T>(stream, out, x);
}

template <class T>
requires(!std::is_same_v<T, acc_t<T>>) void add(Stream stream, Mat<T> out, Mat<const acc_t<T>> x) {
  launch_add<T, acc_t<T>>(stream, out, x);
}

template <class T>
void move_sum(Stream stream, Vec<T> out, Vec<T> x) {
  launch_elementwise<4>("move_sum", stream, x.size(), MoveSum{out.data(), x.data()}, out.data(), x.data());
}

template void fill(Stream, Vec<float>, double);
template void fill(Stream, Vec<bf16>, double);
template void fill(Stream, Vec<double>, double);
template void fill(Stream, Vec<std::int32_t>, double);
template void round_to<float, float>(Stream, Vec<float>, Vec<const float>, bool);
template void round_to<bf16, float>(Stream, Vec<bf16>, Vec<const float>, bool);
template void round_to<bf16, bf16>(Stream, Vec<bf16>, Vec<const bf16>, bool);
template void round_as_bf16(Stream, Vec<float>);
template void add<float>(Stream, Mat<float>, Mat<const float>);
template void add<bf16>(Stream, Mat<bf16>, Mat<const bf16>);
template void add<bf16>(Stream, Mat<bf16>, Mat<const float>);
template void move_sum(Stream, Vec<float>, Vec<float>);

}  // namespace nanorun::kernels::cuda
