#pragma once
// The iterations of Muon on matrices of several batches: by the device, and by the portable implementation.

#include <string>

#include "kernels/optimizer/muon_portable.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/muon_matrices.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::test {

enum class Iteration { newton_schulz, polar_express, six_maps };

inline const PolarIteration& coefficients(Iteration iteration) {
  if (iteration == Iteration::six_maps) return six_maps_iteration;
  return iteration == Iteration::newton_schulz ? newton_schulz_iteration : polar_express_iteration;
}

inline void round(Vector<float>& values) {
  for (float& value : values) value = kernels::round_to_bf16(value);
}

/// Without momentum, X begins as the gradients.
inline Vector<float> device_polar_factors(Stream stream, const Vector<float>& x, const Shapes& shapes,
                                          Iteration iteration) {
  const MuonMatrices matrices(shapes);
  const DeviceSum squares;
  matrices.set(matrices.gradients, x);
  const DeviceVector<std::byte> scratch(cuda::polar_factor_workspace(matrices.wide));  // begins as NaN
  cuda::muon_momentum(stream, matrices.batches, matrices.wide, matrices.squares_of_x.data(), {coefficients(iteration)},
                      squares.data());
  const cuda::PolarFactors factors = cuda::polar_factor(stream, matrices.wide, matrices.squares_of_x.data(),
                                                        coefficients(iteration), {scratch.data(), scratch.size()});
  const bool gram = cuda::takes_gram_iteration(matrices.wide, coefficients(iteration));
  const auto host = gram ? MuonMatrices::host_factors<fp16> : MuonMatrices::host_factors<bf16>;
  return widened(host(factors), shapes, Direction::back);
}

inline Vector<float> device_polar_factors(const Vector<float>& x, const Shapes& shapes, Iteration iteration) {
  const BlasStream stream;
  return device_polar_factors(stream, x, shapes, iteration);
}

inline Vector<float> portable_polar_factors(Vector<float> x, const Shapes& shapes, Iteration iteration) {
  const auto batches = batches_of(x.data(), shapes);
  Vector<std::byte> memory(portable::newton_schulz_workspace<float>(batches) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  const auto run = iteration == Iteration::six_maps        ? portable::six_maps<float>
                   : iteration == Iteration::newton_schulz ? portable::newton_schulz<float>
                                                           : portable::polar_express<float>;
  run({}, batches, Workspace(memory).subspan(skip));
  return x;
}

/// `emulate`, the iteration on one wide matrix in place, on every matrix.
template <class Emulate>
Vector<float> emulated_polar_factors(Vector<float> x, const Shapes& shapes, const Emulate& emulate) {
  for (const MatrixBatch<float>& batch : batches_of(x.data(), shapes)) {
    for (int i = 0; i < batch.count; ++i) {
      float* const matrix = batch.data + i * batch.matrix_size();
      if (batch.rows <= batch.cols) {
        emulate(Mat<float>(matrix, batch.rows, batch.cols));
        continue;
      }
      Vector<float> turned(batch.matrix_size());
      turn(turned.data(), matrix, batch.rows, batch.cols);
      emulate(Mat<float>(turned.data(), batch.cols, batch.rows));
      turn(matrix, turned.data(), batch.cols, batch.rows);
    }
  }
  return x;
}

}  // namespace nanorun::kernels::test
