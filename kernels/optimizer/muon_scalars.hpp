#pragma once
// Muon (muon.hpp) on small matrices of learned scalars, such as the gates of a layer's attention heads [heads,
// columns]. The formulas are those of muon.hpp in one precision, except for NorMuon: a neuron is a row, whatever the
// shape. Gates of GPT-2 Medium's record are updated so (train_gpt_medium.py of the NanoGPT speedrun, commit f411b3d3).
// New weights, momenta and second moments may be rounded to the nearest bf16, ties to even, when they are stored; the
// update is formed from momenta and second moments before that.

#include <algorithm>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"
#include "kernels/optimizer/muon.hpp"

namespace nanorun::kernels {

/// Largest number of elements of such a matrix, and of its shorter side: one thread block has a matrix in shared
/// memory.
inline constexpr int max_scalar_matrix = 4096, max_scalar_matrix_side = 32;
constexpr bool is_scalar_matrix(int rows, int cols) {
  return rows * cols <= max_scalar_matrix && std::min(rows, cols) <= max_scalar_matrix_side;
}

/// `count` contiguous matrices [rows, cols].
template <class A>
struct ScalarMatrices {
  int count = 0, rows = 0, cols = 0;
  A *weights = nullptr, *gradients = nullptr, *momentum = nullptr;
  A* second_moment = nullptr;  ///< Q [count, rows]; null: without NorMuon
  double lr = 0, decay = 0;
  bool cautious = true;
  bool round_weights = false, round_moments = false;  ///< to bf16

  constexpr std::size_t matrix_size() const { return static_cast<std::size_t>(rows) * cols; }
};

NANORUN_DECLARE_OPS({
  /// Updates all matrices, for which is_scalar_matrix() holds; gradients are zero afterwards.
  /// CUDA: A = float, on a stream with create_sums().
  template <class A>
  void muon_scalars(Stream stream, const ScalarMatrices<A>& matrices, const MuonOptions& options,
                    const MuonSquares& squares);
})

}  // namespace nanorun::kernels
