#include "kernels/attention/attention_projection.hpp"

#include "kernels/linear/matmul.hpp"

namespace nanorun::kernels::portable {

template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_mixed, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueMix<T>& mix, double eps) {
  linear_forward<T>(stream, qkv.row_block(0, x.rows), x, w);
  attention_input_forward<T>(stream, qkv.col_block(0, 2 * v_mixed.cols), v_mixed, rstd, qkv, rotary, mix, eps);
}

template void attention_projection_forward(Stream, Mat<float>, Mat<float>, Mat<float>, Mat<const float>,
                                           Mat<const float>, const Rotary<float>&, const ValueMix<float>&, double);
template void attention_projection_forward(Stream, Mat<double>, Mat<double>, Mat<double>, Mat<const double>,
                                           Mat<const double>, const Rotary<double>&, const ValueMix<double>&, double);

}  // namespace nanorun::kernels::portable
