#pragma once
// What happens to the outputs of attention's heads before the output projection, each where the layer's lists name it:
// dynamic composition of the heads (DC), XSA, and a gate per head, in this order.

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

  /// Of the layer's y; `in` and first_key as attention had them. Returns what the output projection reads, in a.aux
  /// where the layer has XSA or gates.
  kernels::Mat<T> forward(kernels::Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                          const std::int32_t* first_key, int layer) const;
  /// What forward() returned, formed anew where that was in a.aux.
  kernels::Mat<const T> again(kernels::Stream stream, const Activations<T>& a, int layer) const;
  /// Makes a.d_narrow, the gradient of what forward() returned, that of y but for the composition's inputs, and
  /// value_gradient() that of the values. Returns what forward() returned, formed anew where that was in a.aux.
  kernels::Mat<const T> backward(kernels::Stream stream, const Activations<T>& a, int layer) const;
  /// What XSA sends to the values; null where the layer has none.
  kernels::Mat<T> value_gradient(const Activations<T>& a, int layer) const {
    return has_xsa(layer) ? a.d_v_extra : kernels::Mat<T>();
  }
  /// Adds to the gradients of queries, keys and values what the composition sends them. a.d_narrow is the gradient
  /// of y; nothing where the layer has no composition.
  void backward_composition(kernels::Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                            const std::int32_t* first_key, kernels::Mat<T> d_k, kernels::Mat<T> d_v, int layer) const;
  /// The input n of a gate without a coefficient net: d_n +=.
  void backward_gate(kernels::Stream stream, const Activations<T>& a, int layer) const;

 private:
  ops::AttentionComposition<T> composition(const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                           const std::int32_t* first_key, int layer) const;
  /// XSA and gates of a layer that has either, and their gradients.
  ops::AttentionXsa<T> output(const Activations<T>& a, int layer) const;
  ops::AttentionXsaGradients<T> gradients(const Activations<T>& a, int layer) const;
  /// Null where the layer has none.
  Gate<T> xsa(const Activations<T>& a, int layer) const;
  Gate<T> gate(const Activations<T>& a, int layer) const;
  bool has_xsa(int layer) const { return names(model_.xsa_layers, layer); }
  bool is_gated(int layer) const { return names(model_.gated_layers, layer); }
  bool gated_by_itself(int layer) const { return is_gated(layer) && !model_.gate_nets; }

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Coefficients<T>& coefficients_;
};

}  // namespace nanorun
