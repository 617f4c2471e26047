#pragma once
// Muon (Jordan et al. 2024): Nesterov momentum, then the orthogonal factor of each matrix by a quintic Newton–Schulz
// iteration.
//   buf = m buf + (1 - m) g,  u = (1 - m) g + m buf
//   X = u / (|u|_F + 1e-7), transposed if rows > cols; five times { A = X Xᵀ, B = b A + c A A, X = a X + B X }
//   with (a, b, c) = (3.4445, -4.7750, 2.0315); transposed back.
// Shapes: g, buf [count * rows * cols] for `count` contiguous matrices of one shape.

#include "kernels/types.hpp"

namespace nanorun::kernels {

struct MatrixBatch {
  int count = 0;
  int rows = 0;
  int cols = 0;
};

namespace portable {

/// buf and g are updated in place; g becomes u.
template <class T>
void nesterov_momentum(Stream stream, Vec<T> g, Vec<T> buf, double momentum);

/// Bytes of scratch for newton_schulz.
template <class T>
std::size_t newton_schulz_workspace(const MatrixBatch& shape);

/// Replaces each matrix of x by its approximate orthogonal factor.
template <class T>
void newton_schulz(Stream stream, Vec<T> x, const MatrixBatch& shape, Workspace workspace);

/// w += alpha * x
template <class T>
void add_scaled(Stream stream, Vec<T> w, Vec<const T> x, double alpha);

}  // namespace portable

namespace cuda {

/// T = float
template <class T>
void nesterov_momentum(Stream stream, Vec<T> g, Vec<T> buf, double momentum);

template <class T>
void add_scaled(Stream stream, Vec<T> w, Vec<const T> x, double alpha);

/// The same, and copy [size of w] = w rounded to bf16, for the products that read it.
void add_scaled_with_copy(Stream stream, Vec<float> w, Vec<bf16> copy, Vec<const float> x, double alpha);

/// T = float; the products of the iteration are bf16, summed in fp32, on a stream with create_blas. Throws
/// std::invalid_argument unless rows and cols are multiples of 8.
template <class T>
std::size_t newton_schulz_workspace(const MatrixBatch& shape);
template <class T>
void newton_schulz(Stream stream, Vec<T> x, const MatrixBatch& shape, Workspace workspace);

}  // namespace cuda
}  // namespace nanorun::kernels
