#pragma once
// What the forward pass leaves for the backward pass, and the scratch of both, cut from one arena. Sequences that are
// only evaluated keep one block's buffers for all layers and the outputs that skips read.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config.hpp"

namespace nanorun {

/// Saved by one block. Shapes: T tokens, d width, H heads, m d hidden units.
template <class T>
struct BlockActivations {
  kernels::Mat<T> x;                         ///< residual stream after the block [T, d]
  kernels::Mat<T> n_mix;                     ///< norm of the mixed residual stream [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd_mix;  ///< [T]
  kernels::Mat<T> qkv;                       ///< q and k after norm and rotary, v as projected [T, 3d]
  kernels::Mat<T> v_mixed;                   ///< [T, d]
  kernels::Mat<kernels::acc_t<T>> rstd_qk;   ///< [T, 2H]
  kernels::Mat<T> y;                         ///< attention [T, d]
  kernels::Mat<kernels::acc_t<T>> lse;       ///< [H, T]
  kernels::Mat<T> n_mlp;                     ///< norm of the stream before the MLP [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd_mlp;  ///< [T]
  kernels::Mat<T> h;                         ///< squared relu [T, m d]; one buffer for all blocks under Recompute::mlp
};

template <class T>
struct Activations {
  int length = 0;
  std::vector<BlockActivations<T>> block;
  kernels::Mat<T> x0;  ///< normed embedding [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd0;
  kernels::Mat<T> v_first;  ///< value projection of layer 0 (value_path "first")
  kernels::Mat<T> n_final;  ///< norm of the last block's output [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd_final;

  // Gradients; training only.
  kernels::Mat<T> d_narrow;                   ///< of n_final, then of any branch of width d, then of the embedding
  std::vector<kernels::Mat<T>> d_skip;        ///< per encoder block [T, d]; stands where its decoder block's x was. The
                                              ///< last one's is part of d_x, as the next block reads x as skip too
  kernels::Mat<kernels::acc_t<T>> d_v_first;  ///< [T, d]

  /// Scratch of attention, head and embedding, which never run at once.
  kernels::Workspace workspace;
  // Gradients that exist only between the backward passes of head and embedding, neither of which reads or writes them.
  // They lie in the workspace, behind attention's scratch.
  kernels::Mat<kernels::acc_t<T>> d_q;  ///< queries that attention reads [T, d]
  kernels::Mat<T> d_x;                  ///< residual stream [T, d]
  kernels::Mat<T> d_x0;                 ///< [T, d]
  kernels::Mat<T> d_wide;               ///< any branch of width 3d or m d

  Activations() = default;
  /// Takes everything from `allocator`.
  Activations(const Config& config, int length, bool training, kernels::WorkspaceAllocator& allocator);

 private:
  void allocate_training_blocks(const Config& config, kernels::WorkspaceAllocator& allocator);
  void allocate_evaluation_blocks(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_gradients(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_workspace(const Config& config, bool training, kernels::WorkspaceAllocator& allocator);
};

}  // namespace nanorun
