#pragma once
// Products of the rows of a stream with rows of a fixed table of signs.
//   x[t] *= signs[index[t]]
// Shapes: x [T, d]; signs [rows, d], each 1 or -1; index [T].

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// The backward pass is the same op on the gradient.
  /// CUDA: T = bf16; rows are whole 16-byte vectors; else std::invalid_argument.
  template <class T>
  void sign_rows(Stream stream, Mat<T> x, Mat<const T> signs, Vec<const std::int32_t> index);
})

}  // namespace nanorun::kernels
