#include "kernels/attention/attention_xsa.hpp"

#include <cmath>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// One head of one token, with the numbers of the formula.
template <class T>
struct Head {
  int head_dim;
  const T *y, *v;
  T c = 0, s = 1, part = 0, norm = 1;
  bool clamped = false;

  KOKKOS_FUNCTION Head(const AttentionXsa<T>& in, int t, int h) : head_dim(in.y.cols / in.heads) {
    const int first = h * head_dim;
    y = in.y.row(t) + first;
    v = in.alpha ? in.v.row(t) + first : nullptr;
    if (in.gate) s = in.gate.row(t)[h];
    if (!v) return;
    constexpr T smallest = T(1e-8);
    const T own = dot(v, v, head_dim);
    clamped = own < smallest;
    norm = clamped ? smallest : own;
    part = dot(y, v, head_dim) / norm;
    c = std::tanh(in.alpha.row(t)[h]);
  }

  /// out of the head; `out` may be y.
  KOKKOS_FUNCTION void form(T* out) const {
    const T taken = c * part;
#pragma omp simd
    for (int j = 0; j < head_dim; ++j) out[j] = v ? s * (y[j] - taken * v[j]) : s * y[j];
  }

  /// <g, v>
  KOKKOS_FUNCTION T by_value(const T* g) const { return v ? dot(g, v, head_dim) : 0; }
  KOKKOS_FUNCTION T gate_gradient(const T* g) const { return dot(g, y, head_dim) - c * part * by_value(g); }
  KOKKOS_FUNCTION T alpha_gradient(const T* g) const { return -(1 - c * c) * s * part * by_value(g); }

  /// d_y of the head, and d_v unless null. `d_y` may be g.
  KOKKOS_FUNCTION void backward(T* d_y, T* d_v, const T* g) const {
    const T along = -c * s * by_value(g) / norm, twice = clamped ? 0 : 2 * part;
#pragma omp simd
    for (int j = 0; j < head_dim; ++j) {
      const T d = s * g[j];
      if (d_v) d_v[j] = along * (y[j] - twice * v[j]) - c * part * d;
      d_y[j] = v ? d + along * v[j] : d;
    }
  }
};

template <class T>
void alpha_backward(Mat<acc_t<T>> d_alpha, Mat<const T> d_out, const AttentionXsa<T>& in) {
  const auto gradient = [=] KOKKOS_FUNCTION(int t, int h) {
    const Head<T> head(in, t, h);
    return head.alpha_gradient(d_out.row(t) + h * head.head_dim);
  };
  if (d_alpha.ld > 0) {
    for_rows("attention_xsa_alpha_backward", d_out.rows, [=] KOKKOS_FUNCTION(int t) {
      for (int h = 0; h < in.heads; ++h) d_alpha.row(t)[h] += gradient(t, h);
    });
    return;
  }
  for (int h = 0; h < in.heads; ++h) {
    const double sum = sum_rows<1>("attention_xsa_alpha_backward", d_out.rows, [=] KOKKOS_FUNCTION(int t) {
                         return Sums<1>{{gradient(t, h)}};
                       }).values[0];
    for_rows("attention_xsa_alpha_sum", 1, [=] KOKKOS_FUNCTION(int) { d_alpha.row(0)[h] += static_cast<T>(sum); });
  }
}

}  // namespace

template <class T>
void attention_xsa_forward(Stream, Mat<T> out, const AttentionXsa<T>& in) {
  for_rows("attention_xsa_forward", in.y.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < in.heads; ++h) {
      const Head<T> head(in, t, h);
      head.form(out.row(t) + h * head.head_dim);
    }
  });
}

template <class T>
void attention_xsa_backward(Stream, const AttentionXsaGradients<T>& d, Mat<T> out, Mat<const T> d_out,
                            const AttentionXsa<T>& in) {
  if (in.alpha) alpha_backward(d.d_alpha, d_out, in);  // first: d_y may be d_out
  for_rows("attention_xsa_backward", in.y.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < in.heads; ++h) {
      const Head<T> head(in, t, h);
      const int first = h * head.head_dim;
      const T* const g = d_out.row(t) + first;
      if (in.gate) d.d_gate.row(t)[h] = head.gate_gradient(g);
      head.form(out.row(t) + first);
      head.backward(d.d_y.row(t) + first, in.alpha ? d.d_v.row(t) + first : nullptr, g);
    }
  });
}

#define NANORUN_OPS(T)                                                                                \
  template void attention_xsa_forward(Stream, Mat<T>, const AttentionXsa<T>&);                        \
  template void attention_xsa_backward(Stream, const AttentionXsaGradients<T>&, Mat<T>, Mat<const T>, \
                                       const AttentionXsa<T>&);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
