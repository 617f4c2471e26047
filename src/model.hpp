#pragma once
// The transformer: weights and gradients are views into arenas laid out by the parameter table; activations live in
// one arena that training and validation share. T is the scalar of the activations (float; double in tests).

#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/activations.hpp"
#include "src/arena.hpp"
#include "src/config.hpp"
#include "src/mask.hpp"
#include "src/params.hpp"
#include "src/trace.hpp"

namespace nanorun {

/// One stream of `length` tokens with its targets (the same tokens one later).
struct Sequence {
  std::span<const kernels::Token> tokens;
  std::span<const kernels::Token> targets;

  /// `row` holds length + 1 tokens.
  static Sequence of(std::span<const kernels::Token> row) {
    return {row.first(row.size() - 1), row.last(row.size() - 1)};
  }
};

template <class T>
class Model {
 public:
  /// Weights and gradients are arenas of table.size() elements and outlive the model.
  Model(const Config& config, const ParameterTable& table, std::span<T> weights, std::span<T> gradients,
        kernels::Token end_of_text);

  /// Adds the gradients of the sequence's mean loss to the gradients; returns the mean loss. window: tokens of the
  /// long layers' window. The length is train.length.
  double forward_backward(kernels::Stream stream, Trace& trace, const Sequence& sequence, int window);

  /// Mean loss of a sequence of validation.length tokens, the head in working precision.
  double validate(kernels::Stream stream, Trace& trace, const Sequence& sequence, int window);

  /// Bytes that a model takes beside weights and gradients.
  static std::size_t activation_bytes(const Config& config);

 private:
  void prepare(const Sequence& sequence, int window);
  void forward(kernels::Stream stream, Activations<T>& a, std::span<const kernels::Token> tokens);
  void backward(kernels::Stream stream, Activations<T>& a, std::span<const kernels::Token> tokens);
  void block_forward(kernels::Stream stream, Activations<T>& a, std::span<const kernels::Token> tokens, int layer);
  void block_backward(kernels::Stream stream, Activations<T>& a, std::span<const kernels::Token> tokens, int layer);

  ops::ResidualInputs<T> residual_inputs(const Activations<T>& a, int layer) const;
  ops::ResidualGradients<T> residual_gradients(const Activations<T>& a, int layer);
  ops::ValueMix<T> value_mix(const Activations<T>& a, std::span<const kernels::Token> tokens, int layer) const;
  ops::ValueMixGradients<T> value_mix_gradients(const Activations<T>& a, int layer);
  ops::AttentionInputs<T> attention_inputs(const Activations<T>& a, int layer) const;
  ops::Rotary<T> rotary(const Activations<T>& a) const;
  kernels::AttentionMask mask(int layer) const;

  const Config& config_;
  Tensors<T> w_;
  Tensors<T> d_;
  kernels::Token end_of_text_;
  kernels::HeadOptions head_;
  Mask long_mask_, short_mask_;
  TensorArena<T> rotary_table_;
  Arena arena_;
  Activations<T> training_;
  Activations<T> validation_;
};

/// Floating-point operations of forward and backward over one training sequence, attention counted for its window
/// without regard to documents.
double flops_per_sequence(const Config& config, const ParameterTable& table, int window);

}  // namespace nanorun
