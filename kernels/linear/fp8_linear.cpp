#include "kernels/linear/fp8_linear.hpp"

#include <cassert>
#include <cmath>

#include "kernels/device/fp8.hpp"
#include "kernels/device/magnitude.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

template <Fp8Format format>
KOKKOS_INLINE_FUNCTION float round_to(float x) {
  return format == Fp8Format::e4m3 ? round_to_e4m3(x) : round_to_e5m2(x);
}

template <Fp8Format format>
KOKKOS_INLINE_FUNCTION bool saturates(float x) {
  return std::abs(x) > saturates_above(format);
}

/// Calls body(std::integral_constant) with the format.
template <class Body>
void with_format(Fp8Format format, const Body& body) {
  if (format == Fp8Format::e4m3) return body(std::integral_constant<Fp8Format, Fp8Format::e4m3>());
  body(std::integral_constant<Fp8Format, Fp8Format::e5m2>());
}

/// count_of(i): how many of row i saturate.
template <class Row>
void count_rows(const char* label, int rows, std::uint64_t* saturated, const Row& count_of) {
  const auto row = [=] KOKKOS_FUNCTION(int i) { return Sums<1>{{static_cast<double>(count_of(i))}}; };
  const auto found = static_cast<std::uint64_t>(sum_rows<1>(label, rows, row).values[0]);
  if (saturated) for_rows("add_saturated", 1, [=] KOKKOS_FUNCTION(int) { *saturated += found; });
}

template <Fp8Format format, class T>
void quantise(const Fp8Quantisation<T>& of) {
  count_rows("fp8_quantise", of.x.rows, of.saturated, [=] KOKKOS_FUNCTION(int i) {
    const float inverse = 1 / of.scale.value();
    const T* const from = of.x.row(i);
    int count = 0;
    for (int j = 0; j < of.x.cols; ++j) {
      auto value = static_cast<float>(from[j]);
      if (of.factor) value *= static_cast<float>(*of.factor);
      value *= inverse;
      count += saturates<format>(value);
      const T rounded = round_to<format>(value);
      if (of.q) of.q.row(i)[j] = rounded;
      if (of.q_t) of.q_t.row(j)[i] = rounded;
    }
    return count;
  });
}

/// What has been enqueued is done, and the factor can be read where ops work on a device.
template <class A>
A read(const A* factor) {
  A value = 0;
  copy_to_host({}, &value, factor, sizeof value);
  return value;
}

/// out = *factor a bᵀ. The factor multiplies whole sums, as on CUDA.
template <class T>
void product(Mat<T> out, Mat<const T> a, Mat<const T> b, const T* factor) {
  gemm<T>(Op::none, Op::transpose, 1, a, b, 0, out);
  for_rows("fp8_product", out.rows, [=] KOKKOS_FUNCTION(int i) {
    T* const row = out.row(i);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) row[j] *= *factor;
  });
}

/// q = F(values / s), and what `result` asks for; q may be `values`, or null.
template <Fp8Format format, class T>
void quantise_result(const char* label, Mat<T> q, const Fp8Result<T>& result, Mat<const T> values) {
  const Magnitude<T> magnitude{result.maximum, values};
  max_magnitude<T>({}, {&magnitude, 1});
  if (!q) return;
  count_rows(label, q.rows, result.saturated, [=] KOKKOS_FUNCTION(int i) {
    const auto inverse = static_cast<float>(*result.inverse);
    int count = 0;
    for (int j = 0; j < q.cols; ++j) {
      const float value = inverse * static_cast<float>(values.row(i)[j]);
      count += saturates<format>(value);
      q.row(i)[j] = round_to<format>(value);
    }
    return count;
  });
}

}  // namespace

template <class T>
void fp8_quantise(Stream, std::span<const Fp8Quantisation<T>> quantisations,
                  std::span<const Fp8Factor<acc_t<T>>> factors) {
  for (const Fp8Quantisation<T>& of : quantisations) {
    assert(!of.q || (of.q.rows == of.x.rows && of.q.cols == of.x.cols));
    assert(!of.q_t || (of.q_t.rows == of.x.cols && of.q_t.cols == of.x.rows));
    with_format(of.format, [&](auto format) { quantise<format()>(of); });
  }
  for (const Fp8Factor<acc_t<T>>& factor : factors) {
    for_rows("fp8_factor", 1, [=] KOKKOS_FUNCTION(int) {
      const float a = factor.a.value();
      if (factor.inverse) {
        *factor.to = 1 / a;
      } else {
        *factor.to = static_cast<T>(a) * (factor.b.maximum ? static_cast<T>(factor.b.value()) : T(1));
      }
    });
  }
}

template <class T>
void fp8_linear_forward(Stream, Mat<T> out, Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                        Output output) {
  if (output == Output::overwrite) return product<T>(out, xq, wq, factor);
  gemm<T>(Op::none, Op::transpose, read(factor), xq, wq, beta_of(output), out);
}

template <class T>
void fp8_linear_backward_input(Stream, Mat<T> d_x, Mat<const Fp8<T>> gq, Fp8Format, Mat<const Fp8<T>> w_t,
                               const acc_t<T>* factor, Output output) {
  gemm<T>(Op::none, Op::transpose, read(factor), gq, w_t, beta_of(output), d_x);
}

template <class T>
std::size_t fp8_linear_backward_weight_workspace(int, int, int) {
  return 0;
}

template <class T>
void fp8_linear_backward_weight(Stream, Mat<acc_t<T>> d_w, bool transposes, Mat<const Fp8<T>> a, Fp8Format,
                                Mat<const Fp8<T>> b_t, Fp8Format, const acc_t<T>* factor, Output output, Workspace) {
  if (transposes) return gemm<T>(Op::none, Op::none, read(factor), b_t, a, beta_of(output), d_w);
  gemm<T>(Op::transpose, Op::transpose, read(factor), a, b_t, beta_of(output), d_w);
}

template <class T>
void fp8_relu2_forward(Stream, Mat<Fp8<T>> hq, const Fp8Result<acc_t<T>>& result, Mat<const Fp8<T>> xq,
                       Mat<const Fp8<T>> wq, const acc_t<T>* factor, Mat<T> h) {
  const Mat<T> values = h ? h : hq;
  product<T>(values, xq, wq, factor);
  for_rows("fp8_relu2_forward", values.rows, [=] KOKKOS_FUNCTION(int i) {
    T* const row = values.row(i);
#pragma omp simd
    for (int j = 0; j < values.cols; ++j) row[j] = row[j] < 0 ? T(0) : row[j] * row[j];  // passes NaN on
  });
  quantise_result<Fp8Format::e4m3, T>("fp8_relu2_forward", hq, result, values);
}

template <class T>
void fp8_relu2_backward(Stream, Mat<Fp8<T>> dq, const Fp8Result<acc_t<T>>& d_z, Mat<const Fp8<T>> gq, Fp8Format format,
                        Mat<const Fp8<T>> v_t, const acc_t<T>* factor, Mat<const Fp8<T>> hq, const acc_t<T>* scale_h) {
  gemm<T>(Op::none, Op::transpose, read(factor), gq, v_t, 0, dq);
  for_rows("fp8_relu2_backward", dq.rows, [=] KOKKOS_FUNCTION(int i) {
    for (int j = 0; j < dq.cols; ++j) dq.row(i)[j] = 2 * dq.row(i)[j] * std::sqrt(*scale_h * hq.row(i)[j]);
  });
  with_format(format, [&](auto of) { quantise_result<of(), T>("fp8_relu2_backward", dq, d_z, dq); });
}

#define NANORUN_OPS(T)                                                                                                 \
  template void fp8_quantise<T>(Stream, std::span<const Fp8Quantisation<T>>, std::span<const Fp8Factor<T>>);           \
  template void fp8_linear_forward<T>(Stream, Mat<T>, Mat<const T>, Mat<const T>, const T*, Output);                   \
  template void fp8_linear_backward_input<T>(Stream, Mat<T>, Mat<const T>, Fp8Format, Mat<const T>, const T*, Output); \
  template std::size_t fp8_linear_backward_weight_workspace<T>(int, int, int);                                         \
  template void fp8_linear_backward_weight<T>(Stream, Mat<T>, bool, Mat<const T>, Fp8Format, Mat<const T>, Fp8Format,  \
                                              const T*, Output, Workspace);                                            \
  template void fp8_relu2_forward<T>(Stream, Mat<T>, const Fp8Result<T>&, Mat<const T>, Mat<const T>, const T*,        \
                                     Mat<T>);                                                                          \
  template void fp8_relu2_backward<T>(Stream, Mat<T>, const Fp8Result<T>&, Mat<const T>, Fp8Format, Mat<const T>,      \
                                      const T*, Mat<const T>, const T*);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
