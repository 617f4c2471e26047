#pragma once
// QKV projection [q k v] = x wᵀ + bias of the normed residual stream, then q', k' and v' of attention_input.hpp.
// Shapes: x [T, K]; w [3 H D, K]; bias [3 H D], or empty for none; the others as in attention_input.hpp. With a key
// offset qkv has T + 1 rows.

#include "kernels/attention/attention_input.hpp"
#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"
#include "kernels/linear/fp8_scale.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_TIERED_OPS({
  /// qkv = [q' k' v]. The second source of the values may be the value part of qkv itself, without an index. CUDA: T =
  /// bf16. Norm, rotation and value residual are the GEMM's epilogue and read its unrounded sums. Throws
  /// std::invalid_argument unless D is one of attention_head_dims (cuda_limits.hpp), with a key offset or dead dims
  /// wide_head_dim, K is a multiple of 64, L and S are of 8, rows are aligned to 16 bytes and the bias to 8; where an
  /// odd number of heads is paired, or paired heads or those with dead dims have a bias; where heads without norm are
  /// paired, have a key offset or dead dims. With a key offset, only the still dims of keys are written in the last
  /// row.
  template <class T>
  void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const T> x,
                                    Mat<const T> w, const Rotary<T>& rotary, const ValueResidual<T>& residual,
                                    double eps, Vec<const std::type_identity_t<acc_t<T>>> bias = {});

  /// The same of *factor xq wqᵀ in the place of x wᵀ + bias, with operands of e4m3 as kernels/linear/fp8_linear.hpp has
  /// them; wq in Fp8Rows::plain. CUDA: K is a multiple of 128; heads are normed.
  template <class T>
  void attention_projection_forward_fp8(Stream stream, Mat<T> qkv, Mat<T> v_out, Mat<acc_t<T>> rstd,
                                        Mat<const Fp8<T>> xq, Mat<const Fp8<T>> wq, const acc_t<T>* factor,
                                        const Rotary<T>& rotary, const ValueResidual<T>& residual, double eps);
})

}  // namespace nanorun::kernels
