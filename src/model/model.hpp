#pragma once
// The transformer: embeddings, blocks of attention and MLP that are joined by mixes of streams, and the LM head.
// Weights and gradients are views into arenas laid out by the parameter table; activations live in one arena that
// training and validation share. T is the scalar of activations and weights (Real; double in tests).
//
// model.cpp has the passes, model_setup.cpp the construction and the memory, model_evaluation.cpp the losses and logits
// of sequences that do not train.

#include <functional>
#include <optional>
#include <span>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/config/schedule.hpp"
#include "src/data/uploader.hpp"
#include "src/measure/trace.hpp"
#include "src/model/activations.hpp"
#include "src/model/attention_layer.hpp"
#include "src/model/biases.hpp"
#include "src/model/fp8_scales.hpp"
#include "src/model/gradients.hpp"
#include "src/model/input_layer.hpp"
#include "src/model/mlp_layer.hpp"
#include "src/model/norm_gains.hpp"
#include "src/model/params.hpp"
#include "src/model/rotary_table.hpp"
#include "src/model/stream_mixes.hpp"
#include "src/model/zero_branches.hpp"

namespace nanorun {

/// Largest magnitudes of what the LM head's products read, beside its weights.
struct LmHeadMagnitudes {
  double x = 0;  ///< the norm before it
  /// Gradient of the sum of the tokens' losses, of the next token alone, by the logits before the softcap.
  double g = 0;
};

template <class T>
class Model {
 public:
  using Gradient = kernels::acc_t<T>;
  /// Called between the ops of one layer and the next, with a layer as in Bucket::layer.
  struct LayerHooks {
    std::function<void(int layer)> enter;  ///< before the forward pass reads the layer's weights
    std::function<void(int layer)> leave;  ///< after the backward pass has completed the layer's gradients
  };

  /// Weights and gradients must outlive the model. Ops run on `compute`, copies to the device on `upload`. A model
  /// without gradients can only evaluate sequences, and holds no memory for training.
  Model(const Config& config, const ParameterTable& table, const Weights<T>& weights, GradientSpans<T> gradients,
        kernels::Token end_of_text, kernels::Stream compute, kernels::Stream upload);

  /// The prefix target of each token of the vocabulary, -1 for none, see kernels/lm_head/lm_head.hpp.
  void set_prefixes(std::span<const std::int32_t> prefixes);

  /// Which gradients a sequence adds to. It replaces the others.
  struct Accumulate {
    bool matrices = false;
    bool others = false;   ///< LM head, tables and learned scalars
    bool cleared = false;  ///< gradients of tables and learned scalars are zero already: none is replaced
  };

  /// Sends a training sequence to the device, for the next forward_backward(). While the device works, this costs no
  /// time.
  DeviceSequence upload(Trace& trace, const Sequence& sequence, Windows windows, CandidateDraw draw = {});

  /// Forward and backward pass of a sequence at a step. Replaces gradients by those of the sequence's loss, or adds to
  /// them, and adds the sum of the tokens' losses to loss(). Does not wait for the device.
  void forward_backward(Trace& trace, const DeviceSequence& sequence, long step, Accumulate accumulate,
                        const LayerHooks& hooks = {});
  RunningSum& loss() { return loss_; }
  /// Their collect() and share() end every step, and checkpoints hold their state().
  Fp8ScalesOf<T>& fp8_scales() { return fp8_scales_; }

  // The next three evaluate a sequence of validation.length tokens with the windows and angles of a step. The LM head
  // computes in working precision. Each waits for the device.

  /// Mean loss of the next token. Raises `largest`, if given, to the magnitudes of this sequence.
  double validate(Trace& trace, const Sequence& sequence, long step, LmHeadMagnitudes* largest = nullptr);
  /// Loss of the next token at each position [validation.length].
  std::vector<double> token_losses(Trace& trace, const Sequence& sequence, long step);
  /// Logits [vocabulary] of the token that follows token `last`. The tokens behind `last` do not matter.
  std::vector<double> next_logits(Trace& trace, std::span<const kernels::Token> tokens, long step, int last);

  /// Largest magnitude of the LM head's weights. Waits for the device.
  double largest_lm_head_weight();

  /// Memory that holds nothing between the backward pass and the next forward pass.
  kernels::Workspace idle() const { return arena_.space(); }
  static std::size_t idle_bytes(const Config& config);
  /// Bytes that a model takes beside weights and gradients.
  static std::size_t memory_bytes(const Config& config);

 private:
  const Parameters<T>& bind_gradients(const ParameterTable& table, const GradientSpans<T>& gradients);
  Feed<T> feed(const DeviceSequence& sequence, int stage);
  Activations<T>& training_for(const DeviceSequence& sequence);
  kernels::LmHeadOptions lm_head_options(long step) const;
  kernels::LmHeadOptions evaluation_lm_head_options() const;
  kernels::Mat<const T> lm_head_input() const;
  kernels::Vec<const Gradient> lm_head_bias() const;
  DeviceSequence forward_evaluation(Trace& trace, const Sequence& sequence, long step);
  void measure_lm_head(kernels::Vec<Gradient> maxima, kernels::Mat<const T> x,
                       kernels::Vec<const kernels::Token> targets);

  void forward(Activations<T>& a, const Feed<T>& feed, const LayerHooks& hooks);
  void lm_head_forward_backward(Activations<T>& a, const DeviceSequence& sequence, long step, kernels::Output output);
  void backward(Activations<T>& a, const Feed<T>& feed, kernels::Output d_matrices, const LayerHooks& hooks);
  void unet_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan);
  void unet_block_backward(Activations<T>& a, const Feed<T>& feed, kernels::Output d_matrices, const BlockPlan& plan);
  void before_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan);
  void before_block_backward(Activations<T>& a, const Feed<T>& feed, kernels::Output d_matrices, const BlockPlan& plan);
  void plain_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan);
  void plain_block_backward(Activations<T>& a, const Feed<T>& feed, kernels::Output d_matrices, const BlockPlan& plan);
  void scaled_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan);
  ops::ScaledGradient<T> scaled_block_backward(Activations<T>& a, const Feed<T>& feed, kernels::Output d_matrices,
                                               const ops::ScaledGradient<T>& d_out, const BlockPlan& plan);
  void first_input_forward(Activations<T>& a);
  void final_norm_forward(Activations<T>& a);
  void final_norm_backward(Activations<T>& a);
  void injections_backward(Activations<T>& a, const InjectionSum& sum);
  void clear_gradients(const Activations<T>& a);
  void norm(const NormActivations<T>& out, kernels::Mat<const T> x, Gradient* largest = nullptr,
            kernels::Vec<const Gradient> shift = {});
  void norm_backward(kernels::Mat<T> d_x, kernels::Output output, const ops::NormGradient<T>& d_norm);
  void mix_norm(kernels::Mat<T> x, const NormActivations<T>& out, const MixTerms<T>& terms,
                Gradient* largest = nullptr);

  const Config& config_;
  Parameters<T> parameters_;
  std::span<Gradient> d_others_;  ///< gradients behind those of matrices and LM head
  kernels::Stream stream_;
  kernels::LmHeadOptions head_;
  TensorArena<std::int32_t> prefixes_;
  std::optional<Uploader> training_uploader_;
  Uploader validation_uploader_;
  RunningSum loss_;
  Fp8ScalesOf<T> fp8_scales_;
  RotaryTable<T> rotary_;
  Arena arena_;
  std::vector<Activations<T>> training_;  ///< for each length of a sequence, in the same memory
  Activations<T> validation_;

  NormGains<T> gains_;
  Biases<T> biases_;
  ZeroBranches<T> zero_branches_;
  Coefficients<T> coefficients_;
  StreamMixes<T> mixes_;
  AttentionValues<T> values_;
  AttentionHeads<T> heads_;
  InputLayer<T> input_;
  AttentionLayer<T> attention_;
  MlpLayer<T> mlp_;
};

}  // namespace nanorun
