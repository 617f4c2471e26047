// Calls of the bodies of products in 8 bits, those of the LM head too.

#include "kernels/linear/fp8_linear.hpp"

#include "kernels/device/tier.hpp"
#include "kernels/linear/fp8_weight_gradient.hpp"

namespace nanorun::kernels::cuda {

template <class A, class B>
void fp8_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const A> a, Mat<const B> b_t) {
  NANORUN_ON_HOPPER(fp8_weight_gradient(stream, d_w, output, factor, a, b_t));
}

template <class T>
void fp8_linear_forward(Stream stream, Mat<T> out, Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                        Output output) {
  NANORUN_ON_HOPPER(fp8_linear_forward<T>(stream, out, xq, wq, factor, output));
}

template <class T>
void fp8_linear_backward_input(Stream stream, Mat<T> d_x, Mat<const Fp8<T>> gq, Fp8Format format, Mat<const Fp8<T>> w_t,
                               const acc_t<T>* factor, Output output) {
  NANORUN_ON_HOPPER(fp8_linear_backward_input<T>(stream, d_x, gq, format, w_t, factor, output));
}

template <class T>
std::size_t fp8_linear_backward_weight_workspace(int rows, int cols, int inner) {
  return NANORUN_ON_HOPPER(fp8_linear_backward_weight_workspace<T>(rows, cols, inner));
}

template <class T>
void fp8_linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, bool transposes, Mat<const Fp8<T>> a,
                                Fp8Format format_a, Mat<const Fp8<T>> b_t, Fp8Format format_b, const acc_t<T>* factor,
                                Output output, Workspace workspace) {
  NANORUN_ON_HOPPER(fp8_linear_backward_weight<T>(stream, d_w, transposes, a, format_a, b_t, format_b, factor, output,
                                                  workspace));
}

template <class T>
void fp8_relu2_forward(Stream stream, Mat<Fp8<T>> hq, const Fp8Result<acc_t<T>>& result, Mat<const Fp8<T>> xq,
                       Mat<const Fp8<T>> wq, const acc_t<T>* factor, Mat<T> h) {
  NANORUN_ON_HOPPER(fp8_relu2_forward<T>(stream, hq, result, xq, wq, factor, h));
}

template <class T>
void fp8_relu2_backward(Stream stream, Mat<Fp8<T>> dq, const Fp8Result<acc_t<T>>& d_z, Mat<const Fp8<T>> gq,
                        Fp8Format format, Mat<const Fp8<T>> v_t, const acc_t<T>* factor, Mat<const Fp8<T>> hq,
                        const acc_t<T>* scale_h) {
  NANORUN_ON_HOPPER(fp8_relu2_backward<T>(stream, dq, d_z, gq, format, v_t, factor, hq, scale_h));
}

template void fp8_weight_gradient(Stream, Mat<float>, Output, float, Mat<const e5m2>, Mat<const e4m3>);
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
