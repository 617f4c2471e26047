#pragma once
// Muon (Jordan et al. 2024): Nesterov momentum, then the orthogonal factor of each matrix by a quintic Newton–Schulz
// iteration.
//   buf = m buf + (1 - m) g,  u = (1 - m) g + m buf
//   X = u / (|u|_F + 1e-7), transposed if rows > cols; five times { A = X Xᵀ, B = b A + c A A, X = a X + B X }
//   with (a, b, c) = (3.4445, -4.7750, 2.0315); transposed back.
// Shapes: g, buf, w, copy, x [count * rows * cols] for `count` contiguous matrices of one shape.

#include "kernels/types.hpp"

namespace nanorun::kernels {

struct MatrixBatch {
  int count = 0;
  int rows = 0;
  int cols = 0;
};

namespace portable {

/// buf and g are updated in place; g enters as gradient_scale g and becomes u. *squares, in the tensors' memory, += sum
/// of (gradient_scale g)², in double: not finite where any of them is not.
template <class A>
void nesterov_momentum(Stream stream, Vec<A> g, Vec<A> buf, double momentum, double gradient_scale, double* squares);

/// Bytes of scratch for newton_schulz.
template <class T>
std::size_t newton_schulz_workspace(const MatrixBatch& shape);

/// Replaces each matrix of x by its approximate orthogonal factor.
template <class T>
void newton_schulz(Stream stream, Vec<T> x, const MatrixBatch& shape, Workspace workspace);

/// w += alpha * x, and copy = w rounded to T, for the products that read it; where T is its own accumulator type, copy
/// is w. *squares += sum of the new w², as above.
template <class T>
void add_scaled(Stream stream, Vec<acc_t<T>> w, Vec<T> copy, Vec<const acc_t<T>> x, double alpha, double* squares);

}  // namespace portable

namespace cuda {

/// A = float. The order of the sum is not fixed.
template <class A>
void nesterov_momentum(Stream stream, Vec<A> g, Vec<A> buf, double momentum, double gradient_scale, double* squares);

/// T = bf16 or float. The order of the sum is not fixed.
template <class T>
void add_scaled(Stream stream, Vec<acc_t<T>> w, Vec<T> copy, Vec<const acc_t<T>> x, double alpha, double* squares);

/// T = float; the products of the iteration are bf16, summed in fp32, on a stream with create_blas. Throws
/// std::invalid_argument unless rows and cols are multiples of 8.
template <class T>
std::size_t newton_schulz_workspace(const MatrixBatch& shape);
template <class T>
void newton_schulz(Stream stream, Vec<T> x, const MatrixBatch& shape, Workspace workspace);

}  // namespace cuda
}  // namespace nanorun::kernels
