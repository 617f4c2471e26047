#include "kernels/stream/coefficient_net.hpp"

#include <algorithm>
#include <numbers>

#include "kernels/device/portable.hpp"
#include "kernels/device/vector_math.hpp"

namespace nanorun::kernels::portable {

namespace {

/// Distribution function of the standard normal distribution.
template <class T>
KOKKOS_FUNCTION T normal_cdf(T z) {
  return (1 + fast_erf(z * static_cast<T>(std::numbers::sqrt2 / 2))) / 2;
}

/// Its density.
template <class T>
KOKKOS_FUNCTION T normal_density(T z) {
  constexpr T at_zero = static_cast<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  return at_zero * fast_exp(-z * z / 2);
}

template <class T>
KOKKOS_FUNCTION T scale_of(const CoefficientNet<T>& net) {
  return static_cast<T>(net.constant) * net.scalar.factor();
}

/// Computes row t of c from row t of z, in parts whose gelu lies on the stack.
template <class T>
KOKKOS_FUNCTION void second_layer_row(int t, Mat<T> c, Mat<const T> z, const CoefficientNet<T>& net) {
  constexpr int part = 64;
  T h[part];
  const T scale = scale_of(net);
  T* to = c.row(t);
  for (int i = 0; i < c.cols; ++i) to[i] = net.bias[i];
  for (int first = 0; first < z.cols; first += part) {
    const int count = std::min(part, z.cols - first);
    const T* from = z.row(t) + first;
#pragma omp simd
    for (int j = 0; j < count; ++j) h[j] = from[j] * normal_cdf(from[j]);
    for (int i = 0; i < c.cols; ++i) to[i] += dot<T>(h, net.w_out.row(i) + first, count);
  }
  for (int i = 0; i < c.cols; ++i) to[i] *= scale;
}

/// d_w_out and d_bias. `h` is scratch.
template <class T>
void second_layer_backward(const CoefficientNetGradients<T>& d, Mat<T> h, Mat<const T> d_c, Mat<const T> z,
                           const CoefficientNet<T>& net) {
  for_rows("coefficient_net_hidden", z.rows, [=] KOKKOS_FUNCTION(int t) {
    const T scale = scale_of(net);
    const T* from = z.row(t);
    T* to = h.row(t);
#pragma omp simd
    for (int j = 0; j < z.cols; ++j) to[j] = scale * from[j] * normal_cdf(from[j]);
  });
  gemm<T>(Op::transpose, Op::none, 1, d_c, h, 1, d.d_w_out);
  for_rows("coefficient_net_bias", d_c.cols, [=] KOKKOS_FUNCTION(int i) {
    double sum = 0;
    for (int t = 0; t < d_c.rows; ++t) sum += d_c.row(t)[i];
    d.d_bias[i] += static_cast<T>(scale_of(net) * sum);
  });
}

}  // namespace

template <class T>
void coefficient_net_forward(Stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  gemm<T>(Op::none, Op::transpose, 1, u, net.w_in, 0, z);
  for_rows("coefficient_net_forward", c.rows, [=] KOKKOS_FUNCTION(int t) { second_layer_row<T>(t, c, z, net); });
}

template <class T>
void coefficient_net_backward(Stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                              Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  second_layer_backward(d, d_z, d_c, z, net);
  gemm<T>(Op::none, Op::none, 1, d_c, net.w_out, 0, d_z);
  const Sums<1> by_scale = sum_rows<1>("coefficient_net_backward", z.rows, [=] KOKKOS_FUNCTION(int t) {
    const T scale = scale_of(net);
    const T* from = z.row(t);
    T* to = d_z.row(t);
    T sum = dot<T>(d_c.row(t), net.bias.data(), d_c.cols);
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < z.cols; ++j) {
      const T cdf = normal_cdf(from[j]);
      sum += to[j] * from[j] * cdf;
      to[j] *= scale * (cdf + from[j] * normal_density(from[j]));
    }
    return Sums<1>{{sum}};
  });
  gemm<T>(Op::transpose, Op::none, 1, d_z, u, 1, d.d_w_in);
  gemm<T>(Op::none, Op::none, 1, d_z, net.w_in, 1, d_u);
  if (!net.scalar.gradient) return;
  for_rows("coefficient_net_scalar", 1, [=] KOKKOS_FUNCTION(int) {
    *net.scalar.gradient += static_cast<T>(net.constant * net.scalar.slope() * by_scale.values[0]);
  });
}

#define NANORUN_OPS(T)                                                                                            \
  template void coefficient_net_forward(Stream, Mat<T>, Mat<T>, Mat<const T>, const CoefficientNet<T>&);          \
  template void coefficient_net_backward(Stream, Mat<T>, const CoefficientNetGradients<T>&, Mat<T>, Mat<const T>, \
                                         Mat<const T>, Mat<const T>, const CoefficientNet<T>&);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
