#include "kernels/linear/matmul.hpp"

#include <cmath>

#include "kernels/device/device.hpp"
#include "kernels/device/portable.hpp"
#include "kernels/linear/bias.hpp"

namespace nanorun::kernels::portable {

namespace {

/// Waits for what has been enqueued, where ops do not work on host memory.
template <class T>
T value_of(const T* factor) {
  T value = 1;
  if (factor) copy_to_host({}, &value, factor, sizeof value);
  return value;
}

}  // namespace

template <class T>
void linear_forward(Stream, Mat<T> out, Mat<const T> x, Mat<const T> w, Output output) {
  gemm<T>(Op::none, Op::transpose, 1, x, w, beta_of(output), out);
}

template <class T>
void linear_backward_input(Stream, Mat<T> d_x, Mat<const T> d_out, Mat<const T> w, const acc_t<T>* factor,
                           Output output) {
  gemm<T>(Op::none, Op::none, value_of(factor), d_out, w, beta_of(output), d_x);
}

template <class T>
void linear_backward_weight(Stream, Mat<acc_t<T>> d_w, Mat<const T> d_out, Mat<const T> x, Output output,
                            const acc_t<T>* factor) {
  gemm<T>(Op::transpose, Op::none, value_of(factor), d_out, x, beta_of(output), d_w);
}

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w,
                          Vec<const std::type_identity_t<acc_t<T>>> bias) {
  linear_forward<T>(stream, h, x, w);
  if (!bias.empty()) add_bias<T>(stream, h, bias);
  for_rows("linear_relu2_forward", h.rows, [=] KOKKOS_FUNCTION(int t) {
    T* row = h.row(t);
#pragma omp simd
    for (int j = 0; j < h.cols; ++j) {
      const T z = row[j];
      row[j] = z < 0 ? T(0) : z * z;  // passes NaN on
    }
  });
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h,
                           const acc_t<T>* factor) {
  linear_backward_input<T>(stream, d_z, d_out, w_next, factor);
  for_rows("linear_relu2_backward", h.rows, [=] KOKKOS_FUNCTION(int t) {
    const T* value = h.row(t);
    T* row = d_z.row(t);
#pragma omp simd
    for (int j = 0; j < h.cols; ++j) row[j] *= 2 * std::sqrt(value[j]);
  });
}

#define NANORUN_OPS(T)                                                                                \
  template void linear_forward(Stream, Mat<T>, Mat<const T>, Mat<const T>, Output);                   \
  template void linear_backward_input(Stream, Mat<T>, Mat<const T>, Mat<const T>, const T*, Output);  \
  template void linear_backward_weight(Stream, Mat<T>, Mat<const T>, Mat<const T>, Output, const T*); \
  template void linear_relu2_forward(Stream, Mat<T>, Mat<const T>, Mat<const T>, Vec<const T>);       \
  template void linear_relu2_backward(Stream, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>, const T*);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
