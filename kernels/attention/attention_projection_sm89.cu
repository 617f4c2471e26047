#include "kernels/ampere/fused_gemm.cuh"
#include "kernels/attention/attention_projection.cuh"

namespace nanorun::kernels::cuda::ampere {

template <class T>
void attention_projection_forward_fp8(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const Fp8<T>> xq,
                                      Mat<const Fp8<T>> wq, const acc_t<T>* factor, const Rotary<T>& rotary,
                                      const ValueResidual<T>& residual, double eps) {
  projection_forward_fp8<fused::Gemm>(stream, qkv, v_out, rstd, xq, wq, factor, rotary, residual, eps);
}

template void attention_projection_forward_fp8(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const fp8>, Mat<const fp8>,
                                               const float*, const Rotary<bf16>&, const ValueResidual<bf16>&, double);

}  // namespace nanorun::kernels::cuda::ampere
