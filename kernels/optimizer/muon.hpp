#pragma once
// Muon (Keller Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"): Nesterov momentum, then
// a quintic Newton–Schulz iteration that replaces each matrix by an approximation of its orthogonal polar factor.
//   buf = m buf + (1 - m) g,  u = (1 - m) g + m buf
// A slow momentum beside it, as in AdEMAMix (Pagliardini et al. 2024, arXiv:2409.03137), takes part with weight 1 - w,
// while buf may have a decay f of its own (pull request 349 of modded-nanogpt):
//   buf = f buf + (1 - f) g,  slow = s slow + (1 - s) g,  u = (1 - m) g + m (w buf + (1 - w) slow)
//   X = u / (|u|_F + 1e-7), transposed if rows > cols; five times { A = X Xᵀ, B = b A + c A A, X = a X + B X }
//   with (a, b, c) = (3.4445, -4.7750, 2.0315); transposed back.
// Polar Express (Amsel et al. 2025, arXiv:2505.16932) has other coefficients in each iteration, and X = u / (1.02 |u|_F
// + 1e-6) at first. So have the six maps of the pull request, which takes |u|_F as the root of the trace of u uᵀ.
// NorMuon (Li et al. 2025, arXiv:2510.05491) then evens out the neurons of a matrix. A neuron is a row of a block, or a
// column if the block has more columns than rows.
//   v = mean of X² over each neuron,  Q = b Q + (1 - b) v,  s = max(Q, 1e-10)^(-1/2)
//   X = X s |X|_F / max(|X s|_F, 1e-10)
// Weight decay is plain, w -= lr X + decay w, or cautious (Chen et al. 2025, arXiv:2510.12402),
// w -= lr X + decay w [X w >= 0].
// Shapes: g, buf, w, copy, x [n], the elements of any number of matrices. New momenta may be rounded to the nearest
// bf16, ties to even, when they are stored; u is formed from them before that.

#include <span>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// `count` contiguous matrices [rows, cols].
template <class T>
struct MatrixBatch {
  T* data = nullptr;
  int count = 0;
  int rows = 0;
  int cols = 0;

  constexpr std::size_t matrix_size() const { return static_cast<std::size_t>(rows) * cols; }
  constexpr std::size_t size() const { return count * matrix_size(); }
};

/// Number of neurons of a matrix, each of which has a second moment in NorMuon.
constexpr int normuon_neurons(int rows, int cols) { return rows >= cols ? rows : cols; }

/// A step X = a X + (b A + c A A) X of an iteration towards the polar factor.
struct PolarStep {
  double a, b, c;
  bool operator==(const PolarStep&) const = default;
};

/// Such an iteration: X = u / (norm_factor |u|_F + eps) at first, then the steps.
struct PolarIteration {
  double norm_factor, eps;
  std::span<const PolarStep> steps;  ///< outlive the iteration; at least one
};

inline constexpr PolarStep newton_schulz_step{3.4445, -4.7750, 2.0315};
inline constexpr PolarStep newton_schulz_steps[] = {newton_schulz_step, newton_schulz_step, newton_schulz_step,
                                                    newton_schulz_step, newton_schulz_step};
inline constexpr PolarIteration newton_schulz_iteration{1, 1e-7, newton_schulz_steps};
inline constexpr PolarStep polar_express_steps[] = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                                                    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                                                    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                                                    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                                                    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
inline constexpr PolarIteration polar_express_iteration{1.02, 1e-6, polar_express_steps};
inline constexpr PolarStep six_maps_steps[] = {{4.447393659248992, -8.6592834371539, 4.484453950130224},
                                               {3.0003381342927278, -3.180035633097396, 0.959298544318381},
                                               {3.5997737315685896, -5.129961939372116, 1.94624091228252},
                                               {3.238755176943844, -3.988313284248892, 1.4073635628857994},
                                               {2.558664852492382, -2.5626431459988033, 0.9815933969681315},
                                               {2.38665846260798, -2.223181615281231, 0.835162681686761}};
inline constexpr PolarIteration six_maps_iteration{1.02, 1e-6, six_maps_steps};

/// A momentum, or gradients, in acc_t<T>, or where T is bf16 also in bf16. Both null: none.
template <class T>
struct Momentum {
  acc_t<T>* wide = nullptr;
  T* narrow = nullptr;  ///< in place of `wide`

  constexpr bool null() const { return wide == nullptr && narrow == nullptr; }
  /// From an element on.
  constexpr Momentum from(std::size_t first) const {
    return {wide == nullptr ? nullptr : wide + first, narrow == nullptr ? nullptr : narrow + first};
  }
};

/// Matrices that muon_update() updates. Each tensor holds `count` contiguous matrices [rows, cols]. `copy` holds the
/// weights rounded or truncated to T, for the GEMMs that read them. In the CPU build acc_t<T> is T, and `copy` is
/// `weights`.
template <class T>
struct MuonBatch {
  int count = 0, rows = 0, cols = 0;
  acc_t<T>*weights = nullptr, *gradients = nullptr;
  Momentum<T> momentum{};
  T* copy = nullptr;
  acc_t<T>* second_moment = nullptr;  ///< Q [count, normuon_neurons(rows, cols)]; null: without NorMuon
  double lr = 0, decay = 0;
  bool cautious = true;           ///< the decay is cautious, not plain
  bool truncates = false;         ///< the copy is truncated, not rounded
  Momentum<T> slow_momentum{};    ///< null: without
  bool round_momenta = false;     ///< to bf16
  T* narrow_gradients = nullptr;  ///< in place of `gradients`, where T is bf16

  constexpr std::size_t matrix_size() const { return static_cast<std::size_t>(rows) * cols; }
  constexpr std::size_t size() const { return count * matrix_size(); }
};

struct MuonOptions {
  const PolarIteration& iteration;
  double momentum = 0;        ///< m
  double gradient_scale = 1;  ///< gradients enter as gradient_scale g
  double normuon_beta = 0;
  // f, s and w, for matrices with a slow momentum.
  double fast_momentum = momentum, slow_momentum = 0, momentum_mix = 1;
};

/// In the tensors' memory: += sum of (gradient_scale g)² and of the new w², each in double. Not finite where any
/// element is not.
struct MuonSquares {
  double *gradients, *weights;
};

NANORUN_DECLARE_OPS({
  /// Bytes of workspace for muon_update(); the batches' tensors may be null.
  template <class T>
  std::size_t muon_workspace(std::span<const MuonBatch<T>> batches);

  /// Updates all matrices: weights, copy, momenta and second moments in place; gradients are undefined afterwards. All
  /// matrices have one shape or its transpose: the iteration commutes with transposition, so they run as one batch.
  /// Either all batches have second moments, or none; the same holds for slow momenta, for narrow gradients, and for
  /// narrow momenta, which must be rounded. The portable ops take wide ones.
  /// CUDA: T = bf16, data aligned to 16 bytes, on a stream with create_blas() and create_sums(). X is bf16 or fp16
  /// between the stages (muon_stages.hpp), which run on all matrices at once. Throws std::invalid_argument unless rows
  /// and cols are multiples of 8, and where shapes differ by more than transposition.
  template <class T>
  void muon_update(Stream stream, std::span<const MuonBatch<T>> batches, const MuonOptions& options,
                   const MuonSquares& squares, Workspace workspace);
})

}  // namespace nanorun::kernels
