#pragma once
// The stages of muon_update() on CUDA, for matrices of one shape or its transpose. Between the stages the matrices X
// lie one after another in bf16 or fp16, each as a wide matrix: transposed where rows > cols. So the iteration runs as
// one batch. Each stage reads and writes every element once, except where a norm must be known first.
//
// The stream needs create_blas() and create_sums(). Sums have a fixed order.

#include <algorithm>

#include "kernels/optimizer/muon.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"

namespace nanorun::kernels::cuda {

/// Shape and number of the wide matrices; data is null. Throws std::invalid_argument as muon_update().
MatrixBatch<bf16> wide_matrices(std::span<const MuonBatch<bf16>> batches);

/// Number of parts into which thread blocks divide a matrix of this shape, or its transpose.
int matrix_parts(int rows, int cols);

/// Updates the momenta, and X = u. squares_of_x [x.count, matrix_parts] = the part's sum of u²: over a matrix they add
/// up to |u|_F². Adds to *squares what muon_update() adds to *MuonSquares::gradients.
void muon_momentum(Stream stream, std::span<const MuonBatch<bf16>> batches, MatrixBatch<bf16> x, float* squares_of_x,
                   const MuonOptions& options, double* squares);

/// Whether the Gram iteration has fewer operations for wide matrices [rows, cols]. Of five steps, in units of 2 rows³
/// and with cols = r rows, s = the part of a symmetric GEMM that is computed (0.58 for 768 rows):
///   the steps 5 ((1 + s) r + s), the Gram iteration 2 (1 + s) r + 14 s; at r = 2, 3, 4 with 768 rows 0.77, 0.66, 0.60.
/// From r = 3 s / (1 + s) = 1.1 on it has fewer operations. The bounds are higher because symmetric GEMMs reach a lower
/// rate than others, and small ones wait more than they compute.
constexpr bool suits_gram_iteration(int rows, int cols) {
  return rows >= 512 && cols >= 2 * rows && computes_triangle(rows, rows) && computes_triangle(rows, cols);
}

/// Whether polar_factor() takes the Gram iteration: for these shapes, and in the two iterations whose elements are
/// known to stay within fp16.
inline bool takes_gram_iteration(MatrixBatch<bf16> x, const PolarIteration& iteration) {
  return suits_gram_iteration(x.rows, x.cols) && (std::ranges::equal(iteration.steps, newton_schulz_steps) ||
                                                  std::ranges::equal(iteration.steps, polar_express_steps));
}

/// The Gram iteration begins anew before this step, counted from 0. Where some rows are nearly parallel and hold most
/// of u, the rounding of G reaches the square of the singular value that tells them apart. With 3 this one may come out
/// above 2.01 (Polar Express) or 1.26 (Newton–Schulz), from where the further steps diverge (docs/performance_log.md).
constexpr int gram_restart = 2;

/// What X in T is multiplied by where it is stored: in fp16 by a power of two, which keeps small elements.
template <class T>
inline constexpr float stored_factor = std::is_same_v<T, fp16> ? 0x1p12f : 1.0f;

/// The same memory.
inline MatrixBatch<fp16> in_fp16(MatrixBatch<bf16> x) {
  return {reinterpret_cast<fp16*>(x.data), x.count, x.rows, x.cols};
}

/// Matrices X as an iteration leaves them: matrix i is scales[i] times what is stored; null: as stored.
struct PolarFactors {
  MatrixBatch<bf16> x;
  const float* scales = nullptr;
};

std::size_t polar_factor_workspace(MatrixBatch<bf16> x);
/// X = X / (norm_factor |X|_F + eps), then the steps of the iteration. X is rounded to bf16 between them. The result
/// lies in the memory of x or in the workspace; the other holds scratch.
///
/// Where computes_triangle(rows, cols), the scales of the result are 1 / (norm_factor |X|_F + eps), and products take
/// them into account: no pass divides the matrices. Elsewhere one does, and the result has no scales. With scales, X
/// whose |X|_F² is above 1e37 may become NaN. NaN and infinity in a matrix make all of it NaN, and no other matrix.
///
/// With takes_gram_iteration() the Gram iteration computes the same polynomial in fp16 (Zhang, Amsel, Chen and Dao
/// 2026, "Gram Newton-Schulz", dao-lab.ai/blog/2026/gram-newton-schulz). A step multiplies X from the left by a
/// polynomial P + a I of G = X Xᵀ. All these are symmetric [rows, rows] and commute, so X waits for their product Q:
///   G = X Xᵀ, Q = I;  for each step { P = b G + c G G, Q = (P + a I) Q, G = (P + a I)² G };  X = Q X.
/// With a relative rounding of u, only those singular values survive in G that are above √u of the largest, while the
/// steps go on multiplying the others. So X = Q X, G = X Xᵀ and Q = I once more before step gram_restart
/// (docs/performance_log.md compares the places). The result is in_fp16(), times stored_factor<fp16>, without scales.
PolarFactors polar_factor(Stream stream, MatrixBatch<bf16> x, const float* squares_of_x,
                          const PolarIteration& iteration, Workspace workspace);

std::size_t muon_apply_workspace(int count);
/// T = bf16 or fp16; matrix i of x is X times stored_factor<T> / scales[i], without scales times stored_factor<T>.
/// Where the batches have second moments, updates these and evens X out by NorMuon. Then updates the weights and their
/// copies by X. Adds to *squares what muon_update() adds to *MuonSquares::weights.
template <class T>
void muon_apply(Stream stream, std::span<const MuonBatch<bf16>> batches, MatrixBatch<T> x, const float* scales,
                double normuon_beta, double* squares, Workspace workspace);

}  // namespace nanorun::kernels::cuda
