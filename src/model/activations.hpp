#pragma once
// What the forward pass leaves for the backward pass, and the scratch of both, cut from one arena. Sequences that are
// only evaluated keep one block's buffers for all layers and the places of the stream that later layers read.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/coefficients.hpp"

namespace nanorun {

/// Saved by the attention of one block. Shapes: T tokens, d width, H heads.
template <class T>
struct AttentionActivations {
  kernels::Mat<T> n;                           ///< norm of the stream that it reads; layers may share it [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd;        ///< [T]
  kernels::Mat<T> d_n;                         ///< gradient of n, of all layers that share it; in training [T, d]
  bool adds_d_n = false;                       ///< a layer above has sent its own
  kernels::Mat<T> qkv;                         ///< q and k after norm and rotary, v as projected [T, 3d]; with a
                                               ///< key offset [T + 1, 3d]
  kernels::Mat<T> v_mixed;                     ///< in the place of v unless takes_up_values() [T, d]
  kernels::Mat<kernels::acc_t<T>> rstd_qk;     ///< [T, 2H]
  kernels::Mat<T> value;                       ///< rows of its gated value embedding; aux unless kept [T, d]
  kernels::Mat<kernels::acc_t<T>> value_gate;  ///< [T, H]
  kernels::Mat<T> y;                           ///< attention [T, d]
  kernels::Mat<kernels::acc_t<T>> lse;         ///< [H, T]; of paired heads [H / 2, 2T]
  kernels::Mat<T> y_composed;                  ///< after the composition of heads, where the layer has it [T, d]
  kernels::Mat<kernels::acc_t<T>> gate;        ///< of the heads, where no coefficient net gives it [T, H]
};

/// Saved by the MLP of one block, with m d hidden units.
template <class T>
struct MlpActivations {
  kernels::Mat<T> n;                     ///< norm of the stream before the MLP, later that stream's gradient [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd;  ///< [T]
  kernels::Mat<T> h;                     ///< squared relu [T, m d]; one buffer for all blocks under Recompute::mlp
};

/// Saved by one block. With Residual::unet the stream is updated in place, and x alone has a buffer.
template <class T>
struct BlockActivations {
  AttentionActivations<T> attention;
  MlpActivations<T> mlp;
  kernels::Mat<T> x_before;                ///< stream that a mix made of the block's input [T, d]
  kernels::Mat<T> attention_out, mlp_out;  ///< scratch where the mix that adds them implies them [T, d]
  kernels::Mat<T> x;                       ///< stream after the block; in training null unless keeps_stream() [T, d]
  bool hands_on_factor = false;            ///< see topology.hpp; in training
  bool attention_is_read = false, mlp_is_read = false;  ///< by the mixes' backward passes, see Branches
};

/// Saved by what comes before the blocks.
template <class T>
struct InputActivations {
  kernels::Mat<T> embedding;  ///< rows of the embedding, where smear follows [T, d]
  kernels::Mat<T> x0;         ///< normed embedding [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd0;
  kernels::Mat<T> bigram;                     ///< signed rows of the table of bigrams [T, d]
  kernels::Mat<T> first;                      ///< stream at the first block, where it is not x0 [T, d]
  kernels::Mat<kernels::acc_t<T>> skip_gate;  ///< [T, 1]
};

/// Gradient of what attention or the MLP adds to the stream: *factor d, or d where factor is null.
template <class T>
struct BranchGradient {
  kernels::Mat<const T> d;  ///< [T, d]
  const kernels::acc_t<T>* factor = nullptr;
};

template <class T>
struct Activations {
  int length = 0;
  bool training = false;
  InputActivations<T> input;
  std::vector<BlockActivations<T>> block;
  CoefficientActivations<T> coefficients;
  kernels::Mat<T> v_first;  ///< value projection of layer 0 (value_path "first")
  kernels::Mat<T> x_final;  ///< mix behind the last block, where there is one [T, d]
  kernels::Mat<T> n_final;  ///< norm of the last stream [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd_final;
  /// Scratch of a layer's attention: what its values take up, then what XSA and gates leave of its heads [T, d].
  kernels::Mat<T> aux;
  kernels::Mat<T> branch;  ///< scratch: what attention or the MLP adds to the stream, where mixes imply it [T, d]

  // Gradients; training only.
  kernels::Mat<T> d_narrow;                     ///< of n_final, then of any branch of width d, then of the embedding
  kernels::Mat<T> d_shared_n;                   ///< of the norm that several layers' attention reads
  std::vector<kernels::Mat<T>> d_place;         ///< by place of the stream; null where no other layer reads it [T, d]
  kernels::Mat<kernels::acc_t<T>> d_v_first;    ///< [T, d]
  kernels::Mat<T> d_bigram;                     ///< [T, d]
  kernels::Mat<kernels::acc_t<T>> d_skip_gate;  ///< [T, 1]

  /// Scratch of attention, the MLP, head and embedding, which never run at once.
  kernels::Workspace workspace;
  // Gradients that exist only between the backward passes of head and embedding, neither of which reads or writes them.
  // They lie in the workspace, behind that of attention and the MLP.
  kernels::Mat<kernels::acc_t<T>> d_q;                        ///< queries that attention reads [T, d]
  kernels::Mat<T> d_x;                                        ///< residual stream [T, d]
  kernels::Mat<T> d_x0;                                       ///< [T, d]
  kernels::Mat<T> d_branch;                                   ///< of what a mix reads of attention or MLP [T, d]
  kernels::Vec<kernels::acc_t<T>> d_branch_factor;            ///< of that gradient, where it is not in d_branch [1]
  kernels::Mat<T> d_k_offset;                                 ///< of keys that attention reads, with an offset [T, d]
  kernels::Mat<T> d_v_extra;                                  ///< of values, from XSA [T, d]
  kernels::Mat<kernels::acc_t<T>> d_value_gate, d_head_gate;  ///< [T, H]
  kernels::Mat<T> d_wide;                                     ///< any branch of width 3d or m d
  std::vector<kernels::Mat<T>> d_value;                       ///< of the rows of each value embedding [T, d]
  kernels::Workspace value_workspace;                         ///< of the lookup of value embeddings

  Activations() = default;
  /// Takes everything from `allocator`.
  Activations(const Config& config, int length, bool training, kernels::WorkspaceAllocator& allocator);

  /// The stream at a place: the input of layer `place`, or the output of the last. Null where it is not kept.
  const kernels::Mat<T>& x_at(int place) const {
    if (place > 0) return block[place - 1].x;
    return input.first ? input.first : input.x0;
  }

 private:
  void allocate_training_blocks(const Config& config, kernels::WorkspaceAllocator& allocator);
  void allocate_evaluation_blocks(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_gradients(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_workspace(const Config& config, kernels::WorkspaceAllocator& allocator);
  std::size_t allocate_scratch(const Config& config, kernels::Workspace space);
};

}  // namespace nanorun
