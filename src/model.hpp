#pragma once
// The transformer: weights and gradients are views into arenas laid out by the parameter table; activations live in
// one arena that training and validation share. T is the scalar of activations and weights (Real; double in tests).

#include <functional>
#include <optional>
#include <span>

#include "kernels/ops.hpp"
#include "src/activations.hpp"
#include "src/arena.hpp"
#include "src/config.hpp"
#include "src/params.hpp"
#include "src/trace.hpp"
#include "src/uploader.hpp"

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

  /// Weights and gradients, the latter [table.size()], outlive the model. Ops run on `compute`, copies to the device on
  /// `upload`. A model without gradients only validates, and holds nothing for training.
  Model(const Config& config, const ParameterTable& table, const Weights<T>& weights, std::span<Gradient> gradients,
        kernels::Token end_of_text, kernels::Stream compute, kernels::Stream upload);

  /// What the gradients hold before a sequence: nothing, where it is the first of a step, or the sums of others.
  enum class Gradients { none, sums };

  /// Sends a sequence of train.length tokens to the device, for the next forward_backward(). While the device works,
  /// this costs no time. window: tokens of the long layers' window.
  DeviceSequence upload(Trace& trace, const Sequence& sequence, int window);

  /// Makes the gradients those of the sequence's mean loss, or adds these to them, and adds the sum of its tokens'
  /// losses to loss(). Does not wait for the device.
  void forward_backward(Trace& trace, const DeviceSequence& sequence, Gradients before, const LayerHooks& hooks = {});
  RunningSum& loss() { return loss_; }

  /// Mean loss of a sequence of validation.length tokens, the head in working precision. Waits for the device.
  double validate(Trace& trace, const Sequence& sequence, int window);

  /// Loss of each token [validation.length] of such a sequence, likewise.
  std::vector<double> token_losses(Trace& trace, const Sequence& sequence, int window);

  /// Logits [vocabulary] of what may follow token `last` of a sequence of validation.length tokens; the tokens behind
  /// it do not matter. Waits for the device.
  std::vector<double> next_logits(Trace& trace, std::span<const kernels::Token> tokens, int window, int last);

  /// Bytes that a model takes beside weights and gradients.
  static std::size_t memory_bytes(const Config& config);

 private:
  void forward(Activations<T>& a, const DeviceSequence& sequence, const LayerHooks& hooks);
  void backward(Activations<T>& a, const DeviceSequence& sequence, Gradients before, const LayerHooks& hooks);
  void block_forward(Activations<T>& a, const DeviceSequence& sequence, int layer);
  void block_backward(Activations<T>& a, const DeviceSequence& sequence, Gradients before, int layer);

  ops::ResidualInputs<T> residual_inputs(const Activations<T>& a, int layer) const;
  ops::ResidualGradients<T> residual_gradients(const Activations<T>& a, int layer);
  ops::ValueMix<T> value_mix(const Activations<T>& a, const DeviceSequence& sequence, int layer) const;
  ops::ValueMixGradients<T> value_mix_gradients(const Activations<T>& a, int layer);
  ops::AttentionInputs<T> attention_inputs(const Activations<T>& a, int layer) const;
  ops::Rotary<T> rotary(const Activations<T>& a) const;
  const kernels::AttentionMask& mask(const DeviceSequence& sequence, int layer) const;

  const Config& config_;
  Tensors<T> w_;
  Tensors<Gradient> d_;
  std::span<Gradient> d_sums_;  ///< those behind the head: of tables and scalars; zeroed before a step's first sequence
  kernels::Stream stream_;
  kernels::HeadOptions head_;
  std::optional<Uploader> training_uploader_;
  Uploader validation_uploader_;
  RunningSum loss_;
  TensorArena<Gradient> rotary_table_;
  Arena arena_;
  Activations<T> training_;
  Activations<T> validation_;
};

/// Floating-point operations of forward and backward over one training sequence, attention counted for its window
/// without regard to documents.
double flops_per_sequence(const Config& config, const ParameterTable& table, int window);

}  // namespace nanorun
