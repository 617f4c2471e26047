#pragma once
// Token embedding: out[t] = table[tokens[t]].
// Shapes: tokens, order [T]; table [vocabulary, d]; out [T, d]. `order` has the positions sorted by token, those of one
// token ascending.

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table);
/// The same with other indices than tokens.
template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const std::int32_t> rows, Mat<const T> table);

/// Bytes of workspace that embedding_backward needs.
template <class T>
std::size_t embedding_backward_workspace(int length, int width);

/// d_table[tokens[t]] += d_out[t], for each token in ascending t.
template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace workspace);
template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const std::int32_t> rows,
                        Vec<const std::int32_t> order, Mat<const T> d_out, Workspace workspace);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

/// T = bf16; rows are whole 16-byte vectors, d <= 4096; else std::invalid_argument.
template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table);
template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const std::int32_t> rows, Mat<const T> table);

template <class T>
std::size_t embedding_backward_workspace(int length, int width);

/// Adds to each row of d_table once: the sum over its token's positions, in an order that depends on the tokens alone.
template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace workspace);
template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const std::int32_t> rows,
                        Vec<const std::int32_t> order, Mat<const T> d_out, Workspace workspace);

}  // namespace nanorun::kernels::cuda
