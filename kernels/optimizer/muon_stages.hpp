#pragma once
// The stages of muon_update() on CUDA, for matrices of one shape or its transpose. Between the stages the matrices X
// lie one after another in bf16, each as a wide matrix: transposed where rows > cols. So the iteration runs as one
// batch. Each stage reads and writes every element once, except where a norm must be known first.
//
// The stream needs create_blas() and create_sums(). Sums have a fixed order.

#include "kernels/optimizer/muon.hpp"

namespace nanorun::kernels::cuda {

/// Shape and number of the wide matrices; data is null. Throws std::invalid_argument as muon_update().
MatrixBatch<bf16> wide_matrices(std::span<const MuonBatch<bf16>> batches);

/// Number of parts into which thread blocks divide a matrix of this shape, or its transpose.
int matrix_parts(int rows, int cols);

/// Updates the momentum, and X = u. squares_of_x [x.count, matrix_parts] = the part's sum of u²: over a matrix they add
/// up to |u|_F². Adds to *squares what muon_update() adds to *MuonSquares::gradients.
void muon_momentum(Stream stream, std::span<const MuonBatch<bf16>> batches, MatrixBatch<bf16> x, float* squares_of_x,
                   double momentum, double gradient_scale, double* squares);

std::size_t polar_factor_workspace(MatrixBatch<bf16> x);
/// X = X / (norm_factor |X|_F + eps), rounded to bf16, then the steps of the iteration.
void polar_factor(Stream stream, MatrixBatch<bf16> x, const float* squares_of_x, const PolarIteration& iteration,
                  Workspace workspace);

std::size_t muon_apply_workspace(MatrixBatch<bf16> x);
/// Where the batches have second moments, updates these and evens X out by NorMuon. Then updates the weights and
/// their copies by X. Adds to *squares what muon_update() adds to *MuonSquares::weights.
void muon_apply(Stream stream, std::span<const MuonBatch<bf16>> batches, MatrixBatch<bf16> x, double normuon_beta,
                double* squares, Workspace workspace);

}  // namespace nanorun::kernels::cuda
