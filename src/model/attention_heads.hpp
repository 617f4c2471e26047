#pragma once
// What is done to the outputs of a layer's attention heads before the output projection, each where the layer's plan
// says so: dynamic composition of the heads (DC), XSA, and a gate per head, in this order.
// kernels/attention/attention_composition.hpp, attention_xsa.hpp and attention_gate.hpp have the formulas.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class AttentionHeads {
 public:
  AttentionHeads(const ModelConfig& model, const Parameters<T>& parameters, const Coefficients<T>& coefficients)
      : model_(model), parameters_(parameters), coefficients_(coefficients) {}

  /// From y [T, d], the layer's attention; `in` and first_key are what attention had. Returns what the output
  /// projection reads [T, d]: a.heads_out where the layer has XSA or gates.
  kernels::Mat<T> forward(kernels::Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                          const std::int32_t* first_key, int layer) const;
  /// What forward() returned, formed anew where that was a.heads_out.
  kernels::Mat<const T> recompute(kernels::Stream stream, const Activations<T>& a, int layer) const;

  /// Backward pass of XSA and gates. a.d_heads: gradient of what forward() returned; then of what XSA and gates read.
  /// Returns the same as recompute().
  kernels::Mat<const T> backward(kernels::Stream stream, const Activations<T>& a, int layer) const;
  /// What backward() has found for the values [T, d], from XSA; null where the layer has none.
  kernels::Mat<T> value_gradient(const Activations<T>& a, int layer) const {
    return a.plan[layer].has_xsa ? a.d_v_xsa : kernels::Mat<T>();
  }
  /// Backward pass of the composition, where the layer has one, once attention's own is done: adds to a.d_q, d_k, d_v
  /// [T, d] and to the gradients of its weights, from a.d_heads as backward() left it.
  void backward_composition(kernels::Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                            const std::int32_t* first_key, kernels::Mat<T> d_k, kernels::Mat<T> d_v, int layer) const;
  /// Backward pass of gates that no coefficient net gives, last of the layer: adds to attention.d_norm and to the
  /// gradient of their weights.
  void backward_gate(kernels::Stream stream, const Activations<T>& a, int layer) const;

 private:
  static bool has_xsa_or_gates(const BlockPlan& plan) { return plan.has_xsa || plan.gates_heads; }
  /// Gates of its own, which read the norm that attention reads.
  static bool gates_by_weights(const BlockPlan& plan) { return plan.gates_heads && !plan.heads_have_net; }
  ops::AttentionComposition<T> composition(const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                           const std::int32_t* first_key, int layer) const;
  ops::AttentionXsa<T> xsa_and_gates(const Activations<T>& a, int layer) const;
  ops::AttentionXsaGradients<T> xsa_and_gate_gradients(const Activations<T>& a, int layer) const;
  /// Null where the layer has none.
  Gate<T> xsa(const Activations<T>& a, int layer) const;
  Gate<T> gate(const Activations<T>& a, int layer) const;
  /// Weights of the composition: part w1 or w2.
  Gate<T> composition_weights(const Activations<T>& a, int layer, const char* part) const;

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Coefficients<T>& coefficients_;
};

}  // namespace nanorun
