#pragma once
// Learned gain of an RMS norm: out = g ∘ n, where norm.hpp or a mix has made n.
// A linear layer that reads it may take the gain into its weights instead, W (g ∘ n) = (W diag(g)) n: gain_forward()
// then works on the rows of W, and gain_unfold() takes the gradient of the product apart.
// Shapes: out, n, d_out, d_n [T, d]; g, d_g [d]; w, d_w, d_folded [N, d].

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// out[t] = g ∘ n[t].
  /// CUDA: T = bf16; rows are whole 16-byte vectors, g is aligned to 16 bytes; else std::invalid_argument.
  template <class T>
  void gain_forward(Stream stream, Mat<T> out, Mat<const T> n, Vec<const acc_t<T>> g);

  /// d_n[t] = g ∘ d_out[t], which may lie in d_out; d_g += sum_t d_out[t] ∘ n[t], in acc_t<T>.
  /// CUDA: demands what the forward pass does, and a stream with create_sums(). The sum has a fixed order.
  template <class T>
  void gain_backward(Stream stream, Mat<T> d_n, Vec<acc_t<T>> d_g, Mat<const T> d_out, Mat<const T> n,
                     Vec<const acc_t<T>> g);

  /// From d_folded, the gradient of W diag(g): d_w = d_folded diag(g), or += with Output::accumulate; d_g[j] += sum_i
  /// d_folded[i,j] w[i,j], in acc_t<T>.
  /// CUDA: demands what gain_backward() does.
  template <class T>
  void gain_unfold(Stream stream, Mat<acc_t<T>> d_w, Output output, Vec<acc_t<T>> d_g, Mat<const acc_t<T>> d_folded,
                   Mat<const T> w, Vec<const acc_t<T>> g);
})

}  // namespace nanorun::kernels
