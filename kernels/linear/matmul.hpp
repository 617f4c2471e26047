#pragma once
// Linear layer: out = x wᵀ, weights stored [out features, in features]. bias.hpp adds a bias.
// Shapes: x [M, K]; w [N, K]; out [M, N]. The portable implementations accumulate in T; on CPUs they call the BLAS.

#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

// CUDA: T = bf16, summed in fp32; rows are aligned to 16 bytes. All but the squared-relu layer need a stream with
// create_blas().
NANORUN_DECLARE_OPS({
  /// out = x wᵀ, or out += x wᵀ with Output::accumulate (adds a branch to the residual stream)
  /// CUDA: may round x wᵀ before it adds.
  template <class T>
  void linear_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const T> w, Output output = Output::overwrite);

  // The gradient of out is *factor d_out, or d_out where `factor` is null: then no op need write the product.

  /// d_x = *factor d_out w, or d_x += *factor d_out w with Output::accumulate
  template <class T>
  void linear_backward_input(Stream stream, Mat<T> d_x, Mat<const T> d_out, Mat<const T> w,
                             const acc_t<T>* factor = nullptr, Output output = Output::overwrite);

  /// d_w = *factor d_outᵀ x, or d_w += *factor d_outᵀ x with Output::accumulate
  template <class T>
  void linear_backward_weight(Stream stream, Mat<acc_t<T>> d_w, Mat<const T> d_out, Mat<const T> x, Output output,
                              const acc_t<T>* factor = nullptr);
})

NANORUN_DECLARE_TIERED_OPS({
  /// Squared-relu layer: h = relu(x wᵀ + bias)² (Primer, So et al. 2021, arXiv:2109.08668). bias [N]; empty: none.
  /// CUDA: K and N are multiples of 64, the bias is aligned to 8 bytes; else std::invalid_argument.
  template <class T>
  void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w,
                            Vec<const std::type_identity_t<acc_t<T>>> bias = {});

  /// Gradient through the layer above h and the square: d_z = *factor (d_out w_next) ∘ 2 sqrt(h), where h = relu(z)²
  /// and out = h w_nextᵀ. Shapes: d_out [M, K']; w_next [K', N]; h, d_z [M, N]. CUDA: K' and N are multiples of 64;
  /// else std::invalid_argument.
  template <class T>
  void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h,
                             const acc_t<T>* factor = nullptr);
})

}  // namespace nanorun::kernels
