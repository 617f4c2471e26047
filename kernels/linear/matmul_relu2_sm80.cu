#include "kernels/ampere/fused_gemm.cuh"
#include "kernels/linear/matmul.hpp"
#include "kernels/linear/matmul_relu2.cuh"

namespace nanorun::kernels::cuda::ampere {

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w,
                          Vec<const std::type_identity_t<acc_t<T>>> bias) {
  relu2_forward<fused::Gemm>(stream, h, x, w, bias);
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h,
                           const acc_t<T>* factor) {
  relu2_backward<fused::Gemm>(stream, d_z, d_out, w_next, h, factor);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Vec<const float>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>, const float*);

}  // namespace nanorun::kernels::cuda::ampere
