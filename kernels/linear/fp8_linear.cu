// Products of operands in 8 bits that fp8_quantise() has made: fused GEMMs with the hidden units, of which each tier
// has a body, and those of cuBLASLt and fp8_weight_gradient, which add up in fp32.

#include "kernels/linear/fp8_linear.hpp"

#include <cassert>

#include "kernels/device/cublas.hpp"
#include "kernels/device/tier.hpp"
#include "kernels/linear/fp8_fused.cuh"
#include "kernels/linear/fp8_weight_gradient.hpp"

namespace nanorun::kernels::cuda {

template <class T>
void fp8_linear_forward(Stream stream, Mat<T> out, Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                        Output output) {
  NANORUN_ON_FP8_TIER(fp8_linear_forward<T>(stream, out, xq, wq, factor, output));
}

template <class T>
void fp8_linear_backward_input(Stream stream, Mat<T> d_x, Mat<const Fp8<T>> gq, Fp8Format format, Mat<const Fp8<T>> w_t,
                               const acc_t<T>* factor, Output output) {
  constexpr const char* name = "fp8_linear_backward_input";
  require_vectors(name, d_x);
  require_product(name, d_x.rows, gq, w_t, d_x.cols);
  require_fp8_sides(name, gq.rows, gq.cols);
  const GemmOptions options{.beta = beta_of(output), .factor = factor};
  with_format(format, [&](auto f) {
    using F = decltype(f);
    gemm<F, e4m3, bf16>(stream, options, Op::none, as<F>(gq), Op::transpose, as<e4m3>(w_t), d_x);
  });
}

template <class T>
std::size_t fp8_linear_backward_weight_workspace(int rows, int cols, int inner) {
  return fp8_weight_gradient_workspace(rows, cols, inner);
}

template <class T>
void fp8_linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, bool transposes, Mat<const Fp8<T>> a,
                                Fp8Format format_a, Mat<const Fp8<T>> b_t, Fp8Format format_b, const acc_t<T>* factor,
                                Output output, Workspace workspace) {
  assert(a.rows == b_t.cols);
  require_fp8_sides("fp8_linear_backward_weight", a.rows, a.cols);
  require_fp8_sides("fp8_linear_backward_weight", b_t.rows, b_t.cols);
  with_format(format_a, [&](auto of_a) {
    with_format(format_b, [&](auto of_b) {
      using A = decltype(of_a);
      using B = decltype(of_b);
      if constexpr (std::is_same_v<A, e4m3> || std::is_same_v<B, e4m3>) {
        fp8_weight_gradient_in_parts<A, B>(stream, d_w, transposes, output, factor, as<A>(a), as<B>(b_t), workspace);
      } else {
        throw std::invalid_argument("fp8_linear_backward_weight: one operand must be e4m3");
      }
    });
  });
}

template <class T>
void fp8_relu2_forward(Stream stream, Mat<Fp8<T>> hq, const Fp8Result<acc_t<T>>& result, Mat<const Fp8<T>> xq,
                       Mat<const Fp8<T>> wq, const acc_t<T>* factor, Mat<T> h) {
  NANORUN_ON_FP8_TIER(fp8_relu2_forward<T>(stream, hq, result, xq, wq, factor, h));
}

template <class T>
void fp8_relu2_backward(Stream stream, Mat<Fp8<T>> dq, const Fp8Result<acc_t<T>>& d_z, Mat<const Fp8<T>> gq,
                        Fp8Format format, Mat<const Fp8<T>> v_t, const acc_t<T>* factor, Mat<const Fp8<T>> hq,
                        const acc_t<T>* scale_h) {
  NANORUN_ON_FP8_TIER(fp8_relu2_backward<T>(stream, dq, d_z, gq, format, v_t, factor, hq, scale_h));
}

template void fp8_linear_forward(Stream, Mat<bf16>, Mat<const fp8>, Mat<const fp8>, const float*, Output);
template void fp8_linear_backward_input(Stream, Mat<bf16>, Mat<const fp8>, Fp8Format, Mat<const fp8>, const float*,
                                        Output);
template std::size_t fp8_linear_backward_weight_workspace<bf16>(int, int, int);
template void fp8_linear_backward_weight<bf16>(Stream, Mat<float>, bool, Mat<const fp8>, Fp8Format, Mat<const fp8>,
                                               Fp8Format, const float*, Output, Workspace);
template void fp8_relu2_forward<bf16>(Stream, Mat<fp8>, const Fp8Result<float>&, Mat<const fp8>, Mat<const fp8>,
                                      const float*, Mat<bf16>);
template void fp8_relu2_backward<bf16>(Stream, Mat<fp8>, const Fp8Result<float>&, Mat<const fp8>, Fp8Format,
                                       Mat<const fp8>, const float*, Mat<const fp8>, const float*);

}  // namespace nanorun::kernels::cuda
