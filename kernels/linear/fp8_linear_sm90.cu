#include "kernels/hopper/fused_gemm.cuh"
#include "kernels/linear/fp8_linear.cuh"

namespace nanorun::kernels::cuda::hopper {

using fused::Gemm;

template <class T>
void fp8_linear_forward(Stream stream, Mat<T> out, Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                        Output output) {
  fp8_ops::linear_forward<Gemm>(stream, out, xq, wq, factor, output);
}

template <class T>
void fp8_relu2_forward(Stream stream, Mat<Fp8<T>> hq, const Fp8Result<acc_t<T>>& result, Mat<const Fp8<T>> xq,
                       Mat<const Fp8<T>> wq, const acc_t<T>* factor, Mat<T> h) {
  fp8_ops::relu2_forward<Gemm>(stream, hq, result, xq, wq, factor, h);
}

template <class T>
void fp8_relu2_backward(Stream stream, Mat<Fp8<T>> dq, const Fp8Result<acc_t<T>>& d_z, Mat<const Fp8<T>> gq,
                        Fp8Format format, Mat<const Fp8<T>> v_t, const acc_t<T>* factor, Mat<const Fp8<T>> hq,
                        const acc_t<T>* scale_h) {
  fp8_ops::relu2_backward<Gemm>(stream, dq, d_z, gq, format, v_t, factor, hq, scale_h);
}

template void fp8_linear_forward(Stream, Mat<bf16>, Mat<const fp8>, Mat<const fp8>, const float*, Output);
template void fp8_relu2_forward<bf16>(Stream, Mat<fp8>, const Fp8Result<float>&, Mat<const fp8>, Mat<const fp8>,
                                      const float*, Mat<bf16>);
template void fp8_relu2_backward<bf16>(Stream, Mat<fp8>, const Fp8Result<float>&, Mat<const fp8>, Fp8Format,
                                       Mat<const fp8>, const float*, Mat<const fp8>, const float*);

}  // namespace nanorun::kernels::cuda::hopper
