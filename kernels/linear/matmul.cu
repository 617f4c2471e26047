#include "kernels/linear/matmul.hpp"

#include "kernels/device/cublas.hpp"
#include "kernels/device/tier.hpp"

namespace nanorun::kernels::cuda {

template <class T>
void linear_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const T> w, Output output) {
  gemm<T, T, T>(stream, {.beta = beta_of(output)}, Op::none, x, Op::transpose, w, out);
}

template <class T>
void linear_backward_input(Stream stream, Mat<T> d_x, Mat<const T> d_out, Mat<const T> w, const acc_t<T>* factor,
                           Output output) {
  gemm<T, T, T>(stream, {.beta = beta_of(output), .factor = factor}, Op::none, d_out, Op::none, w, d_x);
}

template <class T>
void linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, Mat<const T> d_out, Mat<const T> x, Output output,
                            const acc_t<T>* factor) {
  gemm<T, T, acc_t<T>>(stream, {.beta = beta_of(output), .factor = factor}, Op::transpose, d_out, Op::none, x, d_w);
}

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w,
                          Vec<const std::type_identity_t<acc_t<T>>> bias) {
  NANORUN_ON_TIER(linear_relu2_forward<T>(stream, h, x, w, bias));
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h,
                           const acc_t<T>* factor) {
  NANORUN_ON_TIER(linear_relu2_backward<T>(stream, d_z, d_out, w_next, h, factor));
}

template void linear_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Output);
template void linear_backward_input(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, const float*, Output);
template void linear_backward_weight<bf16>(Stream, Mat<float>, Mat<const bf16>, Mat<const bf16>, Output, const float*);
template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Vec<const float>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>, const float*);

}  // namespace nanorun::kernels::cuda
