#pragma once
// Products of a stream with rows of a fixed table of signs, and the hash that indexes a table by pairs of tokens.
//   x[t] *= signs[index[t]]
// Shapes: x [T, d]; signs [rows, d], each 1 or -1; index [T].

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// Also the backward pass, on the gradient.
template <class T>
void sign_rows(Stream stream, Mat<T> x, Mat<const T> signs, Vec<const std::int32_t> index);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16; rows are whole 16-byte vectors; else std::invalid_argument.
template <class T>
void sign_rows(Stream stream, Mat<T> x, Mat<const T> signs, Vec<const std::int32_t> index);

}  // namespace nanorun::kernels::cuda
