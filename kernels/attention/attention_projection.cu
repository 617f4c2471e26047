#include "kernels/attention/attention_projection.hpp"

#include "kernels/device/tier.hpp"

namespace nanorun::kernels::cuda {

template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueResidual<T>& residual, double eps,
                                  Vec<const std::type_identity_t<acc_t<T>>> bias) {
  NANORUN_ON_TIER(attention_projection_forward<T>(stream, qkv, v_out, rstd, x, w, rotary, residual, eps, bias));
}

template <class T>
void attention_projection_forward_fp8(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const Fp8<T>> xq,
                                      Mat<const Fp8<T>> wq, const acc_t<T>* factor, const Rotary<T>& rotary,
                                      const ValueResidual<T>& residual, double eps) {
  NANORUN_ON_FP8_TIER(
      attention_projection_forward_fp8<T>(stream, qkv, v_out, rstd, xq, wq, factor, rotary, residual, eps));
}

template void attention_projection_forward(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>,
                                           const Rotary<bf16>&, const ValueResidual<bf16>&, double, Vec<const float>);
template void attention_projection_forward_fp8(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const fp8>, Mat<const fp8>,
                                               const float*, const Rotary<bf16>&, const ValueResidual<bf16>&, double);

}  // namespace nanorun::kernels::cuda
