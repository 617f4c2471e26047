#pragma once
// The rows of a matrix that a softmax over a part of the vocabulary reads and writes: weights of the LM head, and their
// gradients. Shapes: rows [P], all different; out and x as stated.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

// CUDA: T = bf16 or float; rows are whole 16-byte vectors, else std::invalid_argument.
NANORUN_DECLARE_OPS({
  /// out[i] = x[rows[i]]; out [P, d], x [V, d]
  template <class T>
  void gather_rows(Stream stream, Mat<T> out, Mat<const T> x, Vec<const std::int32_t> rows);

  /// out[rows[i]] = x[i]; out [V, d], x [P, d]
  template <class T>
  void scatter_rows(Stream stream, Mat<T> out, Mat<const T> x, Vec<const std::int32_t> rows);
})

}  // namespace nanorun::kernels
