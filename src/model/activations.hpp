#pragma once
// What the forward pass leaves for the backward pass, and the scratch of both, cut from one arena. Code calls the
// activations of a sequence `a`, and what one layer's attention or MLP has saved in them `saved`.
// Shapes: T tokens, d width, H heads, m = model.mlp_ratio.
//
// Lives of the buffers that several tensors share, in the order of a step. Each tensor has a name of its own. What
// stands left of the arrow writes it, what stands right of it reads it last.
//
//   memory          tensor            life
//   value_source    value_rows        lookup of a gated value embedding -> its gates
//                   value_source      these gates -> QKV projection
//                   heads_out         XSA and gates of the heads -> output projection; again in the backward pass
//   implied_out_    attention_out     output projection -> mix behind attention
//                   mlp_out           MLP -> mix behind the MLP
//   mlp.norm.n      mlp.norm.n        norm before the MLP -> backward pass of the mix behind attention
//                   mlp.d_x           that backward pass, or that of the mix before -> gradients of x0 and of the
//                                     second stream
//   d_final_norm    mlp_sum           MLP in FP8, forward -> its addition to the stream
//                   d_final_norm      LM head -> backward pass of the final norm
//                   d_mlp_norm        backward pass of the MLP -> that of the norm before it
//                   d_heads           that of the output projection, then of XSA and gates -> that of attention
//                   attention.d_norm  that of the QKV projection -> that of the norm before it
//                   d_embedding       that of x0's norm, or of smear -> that of the embedding
//   d_hidden        FP8 operand       first product of the MLP, forward -> second product
//                   d_hidden          second product of the MLP, backward -> first product
//                   d_qkv             backward pass of attention -> that of the QKV projection
//   d_branch_out    d_branch_out      backward pass of the mix behind a branch -> that of the branch
//                   d_smeared         that of x0's norm -> that of smear

#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/block_plan.hpp"
#include "src/model/coefficients.hpp"

namespace nanorun {

/// RMS norm of a stream.
template <class T>
struct NormActivations {
  kernels::Mat<T> n;                     ///< [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd;  ///< [T]
};

/// Saved by the attention of one block.
template <class T>
struct AttentionActivations {
  bool recomputed = false;                  ///< the backward pass forms all but norm anew, see train.recompute
  NormActivations<T> norm;                  ///< norm of the stream that attention reads, in the buffer of norm_owner
  kernels::Mat<T> d_norm;                   ///< gradient of norm.n from all layers that share it; in training [T, d]
  kernels::Mat<T> qkv;                      ///< q and k after norm and rotary, v as projected [T, 3d]; with an offset
                                            ///< of the keys [T + 1, 3d]
  kernels::Mat<T> v_mixed;                  ///< values that attention reads; v of qkv unless takes_up_values [T, d]
  kernels::Mat<kernels::acc_t<T>> rstd_qk;  ///< rstd of the norms of q and k [T, 2H], with model.qk_norm
  kernels::Mat<T> value_rows;               ///< rows of the gated value embedding; scratch unless kept [T, d]
  kernels::Mat<kernels::acc_t<T>> value_gate;  ///< gates of value_rows, where MUDD does not give them [T, H]
  kernels::Mat<T> y;                           ///< what the heads give [T, d]
  kernels::Mat<kernels::acc_t<T>> lse;         ///< log-sum-exp of the scores [H, T]; of paired heads [H / 2, 2T]
  kernels::Mat<T> y_composed;                  ///< y after the composition of heads, where the layer has it [T, d]
  kernels::Mat<kernels::acc_t<T>> gate;        ///< gates of the heads, where no coefficient net gives them [T, H]
};

/// Saved by the MLP of one block.
template <class T>
struct MlpActivations {
  bool recomputed = false;  ///< the backward pass forms h anew, see train.recompute
  NormActivations<T> norm;  ///< norm of the stream that the MLP reads
  kernels::Mat<T> d_x;      ///< with leaves_factors: gradient of that stream; with Residual::before, of what the mix
                            ///< before makes; in the memory of norm.n [T, d]
  kernels::Mat<T> h;        ///< squared relu [T, m d]; in an evaluation of some rows at a time
  kernels::Mat<kernels::Fp8<T>> hq;  ///< in its place, where the backward pass has operands in 8 bits
};

/// Saved by one block. With Residual::unet and plain the stream is updated in place, and x_out alone has a buffer;
/// with Residual::before attention_out has one too.
template <class T>
struct BlockActivations {
  AttentionActivations<T> attention;
  MlpActivations<T> mlp;
  kernels::Mat<T> x_mixed;        ///< stream that BlockMix::before makes of the block's input [T, d]
  kernels::Mat<T> attention_out;  ///< what attention adds to the stream; scratch if attention_is_implied [T, d]
  kernels::Mat<T> mlp_out;        ///< what the MLP adds to the stream; scratch if mlp_is_implied [T, d]
  kernels::Mat<T> x_out;          ///< stream behind the block; null with OutputBuffer::none [T, d]
  /// Implied outputs that the backward pass forms anew, for its mixes to read: see ZeroBranches.
  bool recomputes_attention_out = false, recomputes_mlp_out = false;
};

/// Saved by what comes before the blocks.
template <class T>
struct InputActivations {
  kernels::Mat<T> embedding;                  ///< rows of the embedding, where smear follows [T, d]
  kernels::Mat<T> x0;                         ///< embedding, normed unless embedding_norm = false [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd0;      ///< rstd of x0 [T]
  kernels::Mat<T> second;                     ///< second stream: signed rows of the bigram table, or the norm of
                                              ///< the second embedding [T, d]
  kernels::Vec<kernels::acc_t<T>> rstd2;      ///< rstd of that norm [T]
  kernels::Mat<T> first;                      ///< input of layer 0, where it has not the buffer of x0 [T, d]
  kernels::Mat<kernels::acc_t<T>> skip_gate;  ///< [T, skips]
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
  Mode mode = Mode::evaluation;
  std::vector<BlockPlan> plan;  ///< one per block
  InputActivations<T> input;
  std::vector<BlockActivations<T>> block;
  CoefficientActivations<T> coefficients;
  kernels::Mat<T> v_first;  ///< value projection of layer 0, with ValuePath::first [T, d]
  NormActivations<T> final_norm;
  // Scratch, with norm_gains.
  kernels::Mat<T> gained;                       ///< a norm times its gain [T, d]
  kernels::Mat<T> folded;                       ///< weights times the gain of the norm that they read [max(3, m) d, d]
  kernels::Mat<kernels::acc_t<T>> d_folded;     ///< gradient of such weights; training only
  kernels::Vec<kernels::acc_t<T>> stream_bias;  ///< with biases: what the stream lacks so far, see Biases [d]
  kernels::Mat<T> value_source;                 ///< what a layer's values take up beside their projection [T, d]
  kernels::Mat<T> heads_out;  ///< what XSA and gates leave of a layer's heads; the memory of value_source [T, d]
  kernels::Mat<T> mlp_sum;    ///< output of the MLP in FP8, before it is added to the stream; in training [T, d]

  // Gradients; training only. The first five share one buffer.
  kernels::Mat<T> d_final_norm;                 ///< gradient of final_norm.n [T, d]
  kernels::Mat<T> d_mlp_norm;                   ///< gradient of a block's mlp.norm.n [T, d]
  kernels::Mat<T> d_heads;                      ///< gradient of the output projection's input, then of y [T, d]
  kernels::Mat<T> d_embedding;                  ///< gradient of the rows of the embedding [T, d]
  kernels::Mat<T> d_shared_norm;                ///< gradient of the norm that several layers' attention reads [T, d]
  std::vector<kernels::Mat<T>> d_layer_input;   ///< what layers above have sent to each tapped input [T, d]; else null
  kernels::Mat<kernels::acc_t<T>> d_v_first;    ///< [T, d]
  kernels::Mat<T> d_second;                     ///< [T, d]
  kernels::Mat<kernels::acc_t<T>> d_skip_gate;  ///< [T, skips]

  /// Scratch of attention, the MLP, LM head and embedding, which never run at once.
  kernels::Workspace workspace;
  // Gradients that exist only between the backward passes of LM head and embedding, neither of which reads or writes
  // them. They lie in the workspace, behind the part that attention and the MLP take.
  kernels::Mat<kernels::acc_t<T>> d_q;              ///< gradient of the queries that attention reads [T, d]
  kernels::Mat<T> d_x;                              ///< gradient of the residual stream [T, d]
  kernels::Mat<T> d_x0;                             ///< [T, d]; of a plain stream d_x, the stream begins with x0
  kernels::Mat<T> d_branch_out;                     ///< without leaves_factors: gradient of a branch's output [T, d]
  kernels::Mat<T> d_smeared;                        ///< gradient of the smeared embedding, in d_branch_out [T, d]
  kernels::Vec<kernels::acc_t<T>> d_branch_factor;  ///< the factor of BranchGradient, where a mix leaves it [1]
  kernels::Mat<T> d_k_offset;                       ///< with a key offset: gradient of attention's keys [T, d]
  kernels::Mat<T> d_v_xsa;                          ///< what XSA sends to the values [T, d]
  kernels::Mat<kernels::acc_t<T>> d_value_gate;     ///< [T, H]
  kernels::Mat<kernels::acc_t<T>> d_head_gate;      ///< [T, H]
  kernels::Mat<T> d_qkv;                            ///< [T, 3d]
  kernels::Mat<T> d_hidden;                         ///< gradient of the MLP's product with W_in, in d_qkv [T, m d]
  std::vector<kernels::Mat<T>> d_value_rows;        ///< gradients of the rows of each table of value embeddings [T, d]
  kernels::Workspace value_workspace;               ///< scratch of the backward pass of value embeddings

  Activations() = default;
  /// Takes everything from `allocator`.
  Activations(const Config& config, int length, Mode mode, kernels::WorkspaceAllocator& allocator);

  bool training() const { return mode == Mode::training; }

  /// The residual stream [T, d] that a layer reads; of layer `layers` the output of the last one. Null where
  /// input_is_norm.
  const kernels::Mat<T>& layer_input(int layer) const {
    if (layer > 0) return block[layer - 1].x_out;
    return input.first ? input.first : input.x0;
  }

 private:
  void allocate_gains(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_training_blocks(const Config& config, kernels::WorkspaceAllocator& allocator);
  void allocate_kept(const Config& config, const BlockPlan& plan, kernels::WorkspaceAllocator& allocator);
  void allocate_recomputed(const Config& config, kernels::WorkspaceAllocator& allocator);
  void allocate_evaluation_blocks(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_branch_outputs(const ModelConfig& model, int layer, kernels::WorkspaceAllocator& allocator);
  void allocate_gradients(const ModelConfig& model, kernels::WorkspaceAllocator& allocator);
  void allocate_workspace(const Config& config, kernels::WorkspaceAllocator& allocator);
  std::size_t allocate_scratch(const Config& config, kernels::Workspace space);

  kernels::Mat<T> implied_out_;  ///< scratch: attention_out and mlp_out of the blocks whose mixes imply them [T, d]
};

}  // namespace nanorun
