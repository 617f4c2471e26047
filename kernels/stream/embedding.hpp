#pragma once
// Token embedding: out[t] = table[tokens[t]]. The overloads with `rows` look up other indices than tokens.
// Shapes: tokens, rows, order [T]; table [vocabulary, d]; out [T, d]. `order` has the positions t sorted by their token
// (or row); positions with the same token ascend.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// CUDA: T = bf16; rows are whole 16-byte vectors, d <= 4096; else std::invalid_argument.
  template <class T>
  void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table);
  template <class T>
  void embedding_forward(Stream stream, Mat<T> out, Vec<const std::int32_t> rows, Mat<const T> table);

  /// Bytes of workspace that embedding_backward needs.
  template <class T>
  std::size_t embedding_backward_workspace(int length, int width);

  /// d_table[tokens[t]] += d_out[t], for each token in ascending t.
  /// CUDA: demands what the forward does. Sums d_out over the positions of a token first, in an order that depends on
  /// the tokens alone, and adds the sum to the row.
  template <class T>
  void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                          Mat<const T> d_out, Workspace workspace);
  template <class T>
  void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const std::int32_t> rows,
                          Vec<const std::int32_t> order, Mat<const T> d_out, Workspace workspace);
})

}  // namespace nanorun::kernels
