#pragma once
// Bias of a linear layer: out = x wᵀ + b, where matmul.hpp has made x wᵀ.
// Shapes: out, d_out [M, N]; b, d_b [N].

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// out += b in every row.
  /// CUDA: T = bf16; rows are whole 16-byte vectors, b is aligned to 16 bytes; else std::invalid_argument.
  template <class T>
  void add_bias(Stream stream, Mat<T> out, Vec<const acc_t<T>> b);

  /// d_b += sum over the rows of d_out, in acc_t<T>.
  /// CUDA: demands what add_bias() does, and a stream with create_sums(). The sum has a fixed order.
  template <class T>
  void bias_backward(Stream stream, Vec<acc_t<T>> d_b, Mat<const T> d_out);
})

}  // namespace nanorun::kernels
