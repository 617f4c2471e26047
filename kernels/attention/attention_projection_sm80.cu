#include "kernels/ampere/fused_gemm.cuh"
#include "kernels/attention/attention_projection.cuh"

namespace nanorun::kernels::cuda::ampere {

template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueResidual<T>& residual, double eps,
                                  Vec<const std::type_identity_t<acc_t<T>>> bias) {
  projection_forward<fused::Gemm>(stream, qkv, v_out, rstd, x, w, rotary, residual, eps, bias);
}

template void attention_projection_forward(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>,
                                           const Rotary<bf16>&, const ValueResidual<bf16>&, double, Vec<const float>);

}  // namespace nanorun::kernels::cuda::ampere
