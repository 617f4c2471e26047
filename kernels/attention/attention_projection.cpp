#include "kernels/attention/attention_projection.hpp"

#include "kernels/attention/attention_input_portable.hpp"
#include "kernels/device/portable.hpp"
#include "kernels/linear/bias.hpp"
#include "kernels/linear/fp8_linear.hpp"
#include "kernels/linear/matmul.hpp"

namespace nanorun::kernels::portable {

template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueResidual<T>& residual, double eps,
                                  Vec<const std::type_identity_t<acc_t<T>>> bias) {
  linear_forward<T>(stream, qkv.row_block(0, x.rows), x, w);
  if (!bias.empty()) add_bias<T>(stream, qkv.row_block(0, x.rows), bias);
  attention_input_forward<T>(stream, qkv.col_block(0, 2 * v_out.cols), v_out, rstd, qkv, rotary, residual, eps);
}

template <class T>
void attention_projection_forward_fp8(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const Fp8<T>> xq,
                                      Mat<const Fp8<T>> wq, const acc_t<T>* factor, const Rotary<T>& rotary,
                                      const ValueResidual<T>& residual, double eps) {
  fp8_linear_forward<T>(stream, qkv.row_block(0, xq.rows), xq, wq, factor);
  attention_input_forward<T>(stream, qkv.col_block(0, 2 * v_out.cols), v_out, rstd, qkv, rotary, residual, eps);
}

#define NANORUN_OPS(T)                                                                                          \
  template void attention_projection_forward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>,        \
                                             const Rotary<T>&, const ValueResidual<T>&, double, Vec<const T>);  \
  template void attention_projection_forward_fp8<T>(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>, \
                                                    const T*, const Rotary<T>&, const ValueResidual<T>&, double);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
