#pragma once
// Weight gradients of linear layers with operands in 8 bits on CUDA: of the LM head, and of fp8_linear.hpp.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_TIERED({
  /// d_w = factor aᵀ b, or d_w += factor aᵀ b with Output::accumulate. Sums over 128 rows have about 14 bits, and are
  /// added up in fp32. Shapes: d_w [V, d]; a [rows, V]; b_t = bᵀ [d, rows]; none is empty. A and B are e4m3 or e5m2,
  /// not both e5m2. Throws std::invalid_argument unless every row of each matrix begins at a multiple of 16 bytes.
  template <class A, class B>
  void fp8_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const A> a,
                           Mat<const B> b_t);

  /// Bytes of workspace for fp8_weight_gradient_in_parts() of `rows` x `cols` sums over `inner` rows.
  std::size_t fp8_weight_gradient_workspace(int rows, int cols, int inner);

  /// The same with a factor in device memory, for matrices of too few tiles to occupy all SMs: parts of the rows are
  /// summed up apart, and then added in order. With `transposes` d_w [d, V] is the transpose. V is a multiple of 16.
  template <class A, class B>
  void fp8_weight_gradient_in_parts(Stream stream, Mat<float> d_w, bool transposes, Output output, const float* factor,
                                    Mat<const A> a, Mat<const B> b_t, Workspace workspace);
})

}  // namespace nanorun::kernels
