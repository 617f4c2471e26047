#include "kernels/linear/matmul.hpp"

#include "kernels/device/cublas.hpp"

namespace nanorun::kernels::cuda {

template <class T>
void linear_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const T> w) {
  gemm<T, T, T>(stream, {}, Op::none, x, Op::transpose, w, out);
}

template <class T>
void linear_add_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const T> w) {
  gemm<T, T, T>(stream, {.beta = 1}, Op::none, x, Op::transpose, w, out);
}

template <class T>
void linear_backward_input(Stream stream, Mat<T> d_x, Mat<const T> d_out, Mat<const T> w, const acc_t<T>* factor,
                           bool add) {
  gemm<T, T, T>(stream, {.beta = add ? 1.0f : 0.0f, .factor = factor}, Op::none, d_out, Op::none, w, d_x);
}

template <class T>
void linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, Mat<const T> d_out, Mat<const T> x, bool add,
                            const acc_t<T>* factor) {
  gemm<T, T, acc_t<T>>(stream, {.beta = add ? 1.0f : 0.0f, .factor = factor}, Op::transpose, d_out, Op::none, x, d_w);
}

template void linear_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_add_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_backward_input(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, const float*, bool);
template void linear_backward_weight<bf16>(Stream, Mat<float>, Mat<const bf16>, Mat<const bf16>, bool, const float*);

}  // namespace nanorun::kernels::cuda
