#include "kernels/attention/attention_gate.hpp"

#include <cmath>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// out = s x on one head, or out += that
template <class T>
KOKKOS_FUNCTION void scale_head(T* out, const T* x, T s, int head_dim, Output output) {
  if (output == Output::accumulate) {
#pragma omp simd
    for (int j = 0; j < head_dim; ++j) out[j] += s * x[j];
  } else {
#pragma omp simd
    for (int j = 0; j < head_dim; ++j) out[j] = s * x[j];
  }
}

/// Gradient of <w[h], [x; u]> from that of gate[t,h].
template <class T>
KOKKOS_FUNCTION T gate_backward(T d_gate, T gate, T factor) {
  return d_gate * gate * (1 - gate / factor);
}

/// d_x += the sum over heads of d_z[h] w[h], where `w` begins at the columns of x.
template <class T>
void gate_backward_input(Mat<T> d_x, Mat<const acc_t<T>> d_gate, Mat<const acc_t<T>> gate, T factor,
                         Mat<const acc_t<T>> w) {
  for_rows("attention_gate_backward_input", d_x.rows, [=] KOKKOS_FUNCTION(int t) {
    T* const to = d_x.row(t);
    for (int h = 0; h < gate.cols; ++h) {
      const T d_z = gate_backward(d_gate.row(t)[h], gate.row(t)[h], factor);
      for (int j = 0; j < d_x.cols; ++j) to[j] += d_z * w.row(h)[j];
    }
  });
}

/// d_w += the sum over tokens of d_z x, where `d_w` begins at the columns of x. Serial over t, in a fixed order.
template <class T>
void gate_backward_weight(Mat<acc_t<T>> d_w, Mat<const acc_t<T>> d_gate, Mat<const acc_t<T>> gate, T factor,
                          Mat<const T> x) {
  for_rows("attention_gate_backward_weight", gate.cols * x.cols, [=] KOKKOS_FUNCTION(int i) {
    const int h = i / x.cols, j = i % x.cols;
    double sum = 0;
    for (int t = 0; t < x.rows; ++t) sum += gate_backward(d_gate.row(t)[h], gate.row(t)[h], factor) * x.row(t)[j];
    d_w.row(h)[j] += static_cast<T>(sum);
  });
}

}  // namespace

template <class T>
void attention_scale_forward(Stream, Mat<T> out, Mat<const T> x, Mat<const acc_t<T>> s, int heads, Output output) {
  const int head_dim = x.cols / heads;
  for_rows("attention_scale_forward", x.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < heads; ++h) {
      const int first = h * head_dim;
      scale_head(out.row(t) + first, x.row(t) + first, s.row(t)[h * s.cols / heads], head_dim, output);
    }
  });
}

template <class T>
void attention_scale_backward(Stream, Mat<T> d_x, Mat<acc_t<T>> d_s, Mat<const T> d_out, Mat<const T> x,
                              Mat<const acc_t<T>> s, int heads, Output output) {
  const int head_dim = x.cols / heads;
  for_rows("attention_scale_backward", x.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < heads; ++h) {
      const int first = h * head_dim, group = h * s.cols / heads;
      // The dot product comes first: d_x may be d_out.
      d_s.row(t)[group] += dot(d_out.row(t) + first, x.row(t) + first, head_dim);
      scale_head(d_x.row(t) + first, d_out.row(t) + first, s.row(t)[group], head_dim, output);
    }
  });
}

template <class T>
void attention_gate_forward(Stream, Mat<acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w) {
  const T factor = static_cast<T>(in.factor);
  for_rows("attention_gate_forward", gate.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int h = 0; h < gate.cols; ++h) {
      T z = dot(w.row(h), in.x.row(t), in.x.cols);
      if (in.u) z += dot(w.row(h) + in.x.cols, in.u.row(t), in.u.cols);
      gate.row(t)[h] = factor / (1 + std::exp(-z));
    }
  });
}

template <class T>
void attention_gate_backward(Stream, Mat<T> d_x, Mat<T> d_u, Mat<acc_t<T>> d_w, Mat<const acc_t<T>> d_gate,
                             Mat<const acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w) {
  const T factor = static_cast<T>(in.factor);
  const int a = in.x.cols, b = in.u.cols;
  if (d_x) gate_backward_input<T>(d_x, d_gate, gate, factor, w.col_block(0, a));
  if (d_u) gate_backward_input<T>(d_u, d_gate, gate, factor, w.col_block(a, b));
  if (!d_w) return;
  gate_backward_weight<T>(d_w.col_block(0, a), d_gate, gate, factor, in.x);
  if (in.u) gate_backward_weight<T>(d_w.col_block(a, b), d_gate, gate, factor, in.u);
}

#define NANORUN_OPS(T)                                                                                          \
  template void attention_scale_forward(Stream, Mat<T>, Mat<const T>, Mat<const T>, int, Output);               \
  template void attention_scale_backward(Stream, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>, int, \
                                         Output);                                                               \
  template void attention_gate_forward(Stream, Mat<T>, const GateInputs<T>&, Mat<const T>);                     \
  template void attention_gate_backward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>,             \
                                        const GateInputs<T>&, Mat<const T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
