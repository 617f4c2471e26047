#include "kernels/stream/smear.hpp"

#include <cmath>
#include <stdexcept>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// sigmoid(<w, e[t, 0..g-1]>)
template <class T>
KOKKOS_FUNCTION T gate(int t, Mat<const T> e, Vec<const T> w) {
  const T* from = e.row(t);
  T sum = 0;
  for (std::size_t j = 0; j < w.size(); ++j) sum += w[j] * from[j];
  return 1 / (1 + std::exp(-sum));
}

void require_width(std::size_t gate, int cols) {
  if (gate > max_smear_gate || gate > static_cast<std::size_t>(cols)) {
    throw std::invalid_argument("smear: the gate reads at most 32 columns, and no more than there are");
  }
}
static_assert(max_smear_gate == 32);

/// Gradients of w, and last of scale.
using GateSums = Sums<max_smear_gate + 1>;

/// d_e in row t; returns what the row adds to d_w and d_scale.
template <class T>
KOKKOS_FUNCTION GateSums smear_backward_row(int t, Mat<T> d_e, Mat<const T> d_out, Mat<const T> e, Vec<const T> w,
                                            T scale) {
  const int cols = d_e.cols;
  T* to = d_e.row(t);
  const T* from = d_out.row(t);
  const T* next = d_out.row(t + 1 < d_e.rows ? t + 1 : t);
  const T by_next = t + 1 < d_e.rows ? scale * gate(t + 1, e, w) : 0;
#pragma omp simd
  for (int j = 0; j < cols; ++j) to[j] = from[j] + by_next * next[j];
  GateSums sums;
  if (t == 0) return sums;
  const T product = dot<T>(from, e.row(t - 1), cols), s = gate(t, e, w);
  const T d_gate = scale * s * (1 - s) * product;
  for (std::size_t j = 0; j < w.size(); ++j) {
    to[j] += d_gate * w[j];
    sums.values[j] = d_gate * e.row(t)[j];
  }
  sums.values[max_smear_gate] = s * product;
  return sums;
}

}  // namespace

template <class T>
void smear_forward(Stream, Mat<T> out, Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale) {
  require_width(w.size(), e.cols);
  for_rows("smear_forward", out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* from = e.row(t);
    const T* before = e.row(t > 0 ? t - 1 : 0);
    const T part = t > 0 ? *scale * gate(t, e, w) : 0;
    T* to = out.row(t);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) to[j] = from[j] + part * before[j];
  });
}

template <class T>
void smear_backward(Stream, Mat<T> d_e, Vec<acc_t<T>> d_w, acc_t<T>* d_scale, Mat<const T> d_out, Mat<const T> e,
                    Vec<const acc_t<T>> w, const acc_t<T>* scale) {
  require_width(w.size(), e.cols);
  const GateSums sums = sum_rows<max_smear_gate + 1>(
      "smear_backward", e.rows, [=] KOKKOS_FUNCTION(int t) { return smear_backward_row(t, d_e, d_out, e, w, *scale); });
  for_rows("smear_gate", 1, [=] KOKKOS_FUNCTION(int) {
    for (std::size_t j = 0; j < w.size(); ++j) d_w[j] += static_cast<T>(sums.values[j]);
    *d_scale += static_cast<T>(sums.values[max_smear_gate]);
  });
}

#define NANORUN_OPS(T)                                                               \
  template void smear_forward(Stream, Mat<T>, Mat<const T>, Vec<const T>, const T*); \
  template void smear_backward(Stream, Mat<T>, Vec<T>, T*, Mat<const T>, Mat<const T>, Vec<const T>, const T*);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
