#pragma once
// Token embedding: out[t] = table[tokens[t]].
// Shapes: tokens [T]; table [vocabulary, d]; out [T, d].

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table);

/// d_table[tokens[t]] += d_out[t], tokens in ascending t.
template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Mat<const T> d_out);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16; rows are whole 16-byte vectors.
template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table);

/// Adds by atomics, so the order of the sums is not fixed.
template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Mat<const T> d_out);

}  // namespace nanorun::kernels::cuda
