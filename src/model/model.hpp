#pragma once
// The transformer: embeddings, blocks of attention and MLP that are joined by mixes of streams, and the head. Weights
// and gradients are views into arenas laid out by the parameter table; activations live in one arena that training and
// validation share. T is the scalar of activations and weights (Real; double in tests).

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
#include "src/model/branches.hpp"
#include "src/model/input_layer.hpp"
#include "src/model/mixes.hpp"
#include "src/model/mlp_layer.hpp"
#include "src/model/mlp_scales.hpp"
#include "src/model/params.hpp"
#include "src/model/rotary_table.hpp"

namespace nanorun {

template <class T>
class Model {
 public:
  using Gradient = kernels::acc_t<T>;
  /// Called between the ops of one layer and the next, with a layer as in Bucket::layer.
  struct LayerHooks {
    std::function<void(int layer)> enter;  ///< before the forward pass reads the layer's weights
    std::function<void(int layer)> leave;  ///< after the backward pass has completed the layer's gradients
  };

  /// Weights and gradients, the latter [table.gradient_size()], outlive the model. Ops run on `compute`, copies to the
  /// device on `upload`. A model without gradients only validates, and holds nothing for training.
  Model(const Config& config, const ParameterTable& table, const Weights<T>& weights, std::span<Gradient> gradients,
        kernels::Token end_of_text, kernels::Stream compute, kernels::Stream upload);

  /// The prefix target of each token of the vocabulary, -1 for none, see kernels/lm_head/lm_head.hpp.
  void set_prefixes(std::span<const std::int32_t> prefixes);

  /// To which of the gradients a sequence adds its own; it replaces the others.
  struct Accumulate {
    bool matrices = false;
    bool others = false;   ///< head, tables and learned scalars
    bool cleared = false;  ///< tables and learned scalars are zero: nothing is to be replaced
  };

  /// Sends a training sequence to the device, for the next forward_backward(). While the device works, this costs no
  /// time.
  DeviceSequence upload(Trace& trace, const Sequence& sequence, Windows windows);

  /// Makes the gradients those of the sequence's loss at a step, or adds these to them, and adds the sum of its tokens'
  /// losses to loss(). Does not wait for the device.
  void forward_backward(Trace& trace, const DeviceSequence& sequence, long step, Accumulate accumulate,
                        const LayerHooks& hooks = {});
  RunningSum& loss() { return loss_; }
  /// They end every step, and checkpoints hold their state.
  MlpScales<T>& mlp_scales() { return mlp_scales_; }

  /// Mean loss of the next token over a sequence of validation.length tokens, the head in working precision, as the
  /// model is before a step. Waits for the device.
  double validate(Trace& trace, const Sequence& sequence, long step);

  /// Loss of each token [validation.length] of such a sequence, likewise.
  std::vector<double> token_losses(Trace& trace, const Sequence& sequence, long step);

  /// Logits [vocabulary] of what may follow token `last` of a sequence of validation.length tokens; the tokens behind
  /// it do not matter. Waits for the device.
  std::vector<double> next_logits(Trace& trace, std::span<const kernels::Token> tokens, long step, int last);

  /// Memory that holds nothing between the backward pass and the next forward pass.
  kernels::Workspace idle() const { return arena_.space(); }
  static std::size_t idle_bytes(const Config& config);
  /// Bytes that a model takes beside weights and gradients.
  static std::size_t memory_bytes(const Config& config);

 private:
  const Parameters<T>& bind_gradients(const ParameterTable& table, std::span<Gradient> gradients);
  Feed<T> feed(const DeviceSequence& sequence, int stage);
  Activations<T>& training_for(const DeviceSequence& sequence);
  kernels::LmHeadOptions lm_head_options(long step) const;

  void forward(Activations<T>& a, const Feed<T>& feed, const LayerHooks& hooks);
  void backward(Activations<T>& a, const Feed<T>& feed, bool add, const LayerHooks& hooks);
  int shared_backward(Activations<T>& a, int begin, int end);
  void last_forward(Activations<T>& a);
  void last_backward(Activations<T>& a);
  void unet_block_forward(Activations<T>& a, const Feed<T>& feed, int layer);
  void unet_block_backward(Activations<T>& a, const Feed<T>& feed, bool add, int layer);
  bool normed_ahead(const Activations<T>& a, int layer) const;
  void scaled_block_forward(Activations<T>& a, const Feed<T>& feed, int layer);
  ops::ScaledGradient<T> scaled_block_backward(Activations<T>& a, const Feed<T>& feed, bool add,
                                               const ops::ScaledGradient<T>& d_stream, int layer);

  const Config& config_;
  Parameters<T> parameters_;
  std::span<Gradient> d_others_;  ///< gradients behind those of matrices and head
  kernels::Stream stream_;
  kernels::LmHeadOptions head_;
  TensorArena<std::int32_t> prefixes_;
  std::optional<Uploader> training_uploader_;
  Uploader validation_uploader_;
  RunningSum loss_;
  MlpScales<T> mlp_scales_;
  RotaryTable<T> rotary_;
  Arena arena_;
  std::vector<Activations<T>> training_;  ///< for each length of a sequence, in the same memory
  Activations<T> validation_;

  Branches<T> branches_;
  Coefficients<T> coefficients_;
  Mixes<T> mixes_;
  Values<T> values_;
  AttentionHeads<T> heads_;
  InputLayer<T> input_;
  AttentionLayer<T> attention_;
  MlpLayer<T> mlp_;
};

/// Floating-point operations of forward and backward over one training sequence of a step, attention counted for its
/// windows without regard to documents.
double flops_per_sequence(const Config& config, const ParameterTable& table, long step);

}  // namespace nanorun
