#pragma once
// The stages of muon_update() in the portable implementation, one after another; muon.hpp has the formulas.

#include "kernels/optimizer/muon.hpp"

namespace nanorun::kernels::portable {

/// Updates buf and g in place: g enters as gradient_scale g and becomes u. *squares, in the tensors' memory, += sum of
/// (gradient_scale g)² in double: not finite where any element is not.
template <class A>
void nesterov_momentum(Stream stream, Vec<A> g, Vec<A> buf, double momentum, double gradient_scale, double* squares);

/// The same with a slow momentum; `options` as in muon_update().
template <class A>
void mixed_momentum(Stream stream, Vec<A> g, Vec<A> buf, Vec<A> slow, const MuonOptions& options, double* squares);

/// Bytes of workspace for newton_schulz() and polar_express(); the batches' data may be null.
template <class T>
std::size_t newton_schulz_workspace(std::span<const MatrixBatch<T>> batches);

/// Replaces each matrix of the batches by its approximate polar factor. All matrices have one shape or its transpose.
template <class T>
void newton_schulz(Stream stream, std::span<const MatrixBatch<T>> batches, Workspace workspace);
/// newton_schulz() with the coefficients of Polar Express.
template <class T>
void polar_express(Stream stream, std::span<const MatrixBatch<T>> batches, Workspace workspace);
/// newton_schulz() with the six maps.
template <class T>
void six_maps(Stream stream, std::span<const MatrixBatch<T>> batches, Workspace workspace);

/// Matrices X, and their second moments Q [count, normuon_neurons(rows, cols)].
template <class T>
struct NormuonBatch {
  MatrixBatch<T> x;
  T* second_moment = nullptr;

  constexpr int neurons() const { return normuon_neurons(x.rows, x.cols); }
};

/// NorMuon on the matrices X of all batches, which may differ in shape.
template <class T>
void normuon(Stream stream, std::span<const NormuonBatch<T>> batches, double beta);

/// w -= lr x + decay w [x w >= 0], or without `cautious` w -= lr x + decay w. *squares, in the tensors' memory, += sum
/// of the new w² in double.
template <class T>
void add_scaled_with_decay(Stream stream, Vec<T> w, Vec<const T> x, double lr, double decay, double* squares,
                           bool cautious = true);

/// w += alpha x. *squares as of add_scaled_with_decay().
template <class T>
void add_scaled(Stream stream, Vec<T> w, Vec<const T> x, double alpha, double* squares);

}  // namespace nanorun::kernels::portable
