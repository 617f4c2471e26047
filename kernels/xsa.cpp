#include "kernels/xsa.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// One head of one token: v' = <v, v>, at least the smallest norm, and the part m = <y, v> / v'.
template <class T>
struct Projection {
  T norm, part;
  bool clamped;

  KOKKOS_FUNCTION Projection(const T* y, const T* v, int head_dim) {
    constexpr T smallest = T(1e-8);
    const T own = dot(v, v, head_dim);
    clamped = own < smallest;
    norm = clamped ? smallest : own;
    part = dot(y, v, head_dim) / norm;
  }
};

template <class T>
struct XsaInputs {
  Mat<const T> y, v;
  Mat<const acc_t<T>> alpha;
  int heads, head_dim;

  XsaInputs(Mat<const T> y, Mat<const T> v, Mat<const acc_t<T>> alpha, int heads)
      : y(y), v(v), alpha(alpha), heads(heads), head_dim(y.cols / heads) {}

  KOKKOS_FUNCTION Projection<T> projection(int t, int h) const {
    return {y.row(t) + h * head_dim, v.row(t) + h * head_dim, head_dim};
  }
};

template <class T>
KOKKOS_FUNCTION T alpha_gradient(const XsaInputs<T>& in, const T* d_out, int t, int h) {
  const T c = std::tanh(in.alpha.row(t)[h]);
  return -(1 - c * c) * in.projection(t, h).part * dot(d_out, in.v.row(t) + h * in.head_dim, in.head_dim);
}

template <class T>
void alpha_backward(Mat<acc_t<T>> d_alpha, Mat<const T> d_out, const XsaInputs<T>& in) {
  const auto gradient = [=] KOKKOS_FUNCTION(int t, int h) {
    return alpha_gradient(in, d_out.row(t) + h * in.head_dim, t, h);
  };
  if (d_alpha.ld > 0) {
    for_rows("xsa_alpha_backward", d_out.rows, [=] KOKKOS_FUNCTION(int t) {
      for (int h = 0; h < in.heads; ++h) d_alpha.row(t)[h] += gradient(t, h);
    });
    return;
  }
  for (int h = 0; h < in.heads; ++h) {
    const double sum = sum_rows<1>("xsa_alpha_backward", d_out.rows, [=] KOKKOS_FUNCTION(int t) {
                         return Sums<1>{{gradient(t, h)}};
                       }).values[0];
    for_rows("xsa_alpha_sum", 1, [=] KOKKOS_FUNCTION(int) { d_alpha.row(0)[h] += static_cast<T>(sum); });
  }
}

}  // namespace

template <class T>
void xsa_forward(Stream, Mat<T> out, Mat<const T> y, Mat<const T> v, Mat<const acc_t<T>> alpha, int heads) {
  const XsaInputs<T> in(y, v, alpha, heads);
  for_rows("xsa_forward", y.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < in.heads; ++h) {
      const int first = h * in.head_dim;
      const T taken = std::tanh(in.alpha.row(t)[h]) * in.projection(t, h).part;
      const T *const from = in.y.row(t) + first, *const value = in.v.row(t) + first;
      T* const to = out.row(t) + first;
#pragma omp simd
      for (int j = 0; j < in.head_dim; ++j) to[j] = from[j] - taken * value[j];
    }
  });
}

template <class T>
void xsa_backward(Stream, Mat<T> d_y, Mat<T> d_v, Mat<acc_t<T>> d_alpha, Mat<const T> d_out, Mat<const T> y,
                  Mat<const T> v, Mat<const acc_t<T>> alpha, int heads) {
  const XsaInputs<T> in(y, v, alpha, heads);
  alpha_backward(d_alpha, d_out, in);  // first: d_y may be d_out
  for_rows("xsa_backward", y.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < in.heads; ++h) {
      const int first = h * in.head_dim;
      const T *const g = d_out.row(t) + first, *const from = in.y.row(t) + first, *const value = in.v.row(t) + first;
      T *const to_y = d_y.row(t) + first, *const to_v = d_v.row(t) + first;
      const auto projection = in.projection(t, h);
      const T c = std::tanh(in.alpha.row(t)[h]), part = projection.part;
      const T by_part = -c * dot(g, value, in.head_dim) / projection.norm;  // gradient of part, over norm
      const T by_norm = projection.clamped ? 0 : 2 * part;
#pragma omp simd
      for (int j = 0; j < in.head_dim; ++j) {
        const T d = g[j];
        to_v[j] += by_part * (from[j] - by_norm * value[j]) - c * part * d;
        to_y[j] = d + by_part * value[j];
      }
    }
  });
}

#define NANORUN_INSTANTIATE(T)                                                                                       \
  template void xsa_forward(Stream, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>, int);                          \
  template void xsa_backward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>, Mat<const T>, \
                             int);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable
