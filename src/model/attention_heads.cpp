#include "src/model/attention_heads.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

namespace {

/// What XSA and gates read.
template <class T>
const Mat<T>& composed_heads(const AttentionActivations<T>& saved) {
  return saved.y_composed ? saved.y_composed : saved.y;
}

}  // namespace

template <class T>
Mat<T> AttentionHeads<T>::forward(Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                  const std::int32_t* first_key, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const AttentionActivations<T>& saved = a.block[layer].attention;
  if (plan.composes_heads) {
    ops::attention_composition_forward<T>(stream, saved.y_composed, saved.y, composition(a, in, first_key, layer),
                                          a.workspace);
  }
  if (!has_xsa_or_gates(plan)) return composed_heads(saved);
  if (gates_by_weights(plan)) {
    ops::attention_gate_forward<T>(stream, saved.gate, {saved.norm.n.col_block(0, model_.gate_columns), {}, 1},
                                   parameters_.scalars(block_name(layer, "attention_gate")));
  }
  ops::attention_xsa_forward<T>(stream, a.heads_out, xsa_and_gates(a, layer));
  return a.heads_out;
}

template <class T>
Mat<const T> AttentionHeads<T>::recompute(Stream stream, const Activations<T>& a, int layer) const {
  if (!has_xsa_or_gates(a.plan[layer])) return composed_heads(a.block[layer].attention);
  ops::attention_xsa_forward<T>(stream, a.heads_out, xsa_and_gates(a, layer));
  return a.heads_out;
}

template <class T>
Mat<const T> AttentionHeads<T>::backward(Stream stream, const Activations<T>& a, int layer) const {
  if (!has_xsa_or_gates(a.plan[layer])) return composed_heads(a.block[layer].attention);
  ops::attention_xsa_backward<T>(stream, xsa_and_gate_gradients(a, layer), a.heads_out, a.d_heads,
                                 xsa_and_gates(a, layer));
  return a.heads_out;
}

template <class T>
void AttentionHeads<T>::backward_composition(Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                             const std::int32_t* first_key, Mat<T> d_k, Mat<T> d_v, int layer) const {
  if (!a.plan[layer].composes_heads) return;
  ops::AttentionCompositionGradients<T> d;
  d.d_q = a.d_q;
  d.d_k = d_k;
  d.d_v = d_v;
  d.d_w1 = composition_weights(a, layer, "w1").gradient;
  d.d_w2 = composition_weights(a, layer, "w2").gradient;
  ops::attention_composition_backward<T>(stream, d, a.d_heads, composition(a, in, first_key, layer), a.workspace);
}

template <class T>
void AttentionHeads<T>::backward_gate(Stream stream, const Activations<T>& a, int layer) const {
  if (!gates_by_weights(a.plan[layer])) return;
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const std::string w = block_name(layer, "attention_gate");
  ops::attention_gate_backward<T>(stream, saved.d_norm.col_block(0, model_.gate_columns), {}, parameters_.d_scalars(w),
                                  a.d_head_gate, saved.gate, {saved.norm.n.col_block(0, model_.gate_columns), {}, 1},
                                  parameters_.scalars(w));
}

template <class T>
ops::AttentionComposition<T> AttentionHeads<T>::composition(const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                                            const std::int32_t* first_key, int layer) const {
  return {in, composition_weights(a, layer, "w1").value, composition_weights(a, layer, "w2").value,
          model_.composition_window, first_key};
}

template <class T>
ops::AttentionXsa<T> AttentionHeads<T>::xsa_and_gates(const Activations<T>& a, int layer) const {
  const AttentionActivations<T>& saved = a.block[layer].attention;
  return {model_.heads, composed_heads(saved), saved.v_mixed, xsa(a, layer).value, gate(a, layer).value};
}

template <class T>
ops::AttentionXsaGradients<T> AttentionHeads<T>::xsa_and_gate_gradients(const Activations<T>& a, int layer) const {
  return {a.d_heads, value_gradient(a, layer), xsa(a, layer).gradient, gate(a, layer).gradient};
}

/// Without a net, alpha are learned scalars, and every token has the same row.
template <class T>
Gate<T> AttentionHeads<T>::xsa(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  if (!plan.has_xsa) return {};
  if (plan.heads_have_net) return coefficients_.gate(a.coefficients, fmt::format("xsa.{}", layer));
  const std::string name = block_name(layer, "xsa");
  const auto every_row = [&](const auto& scalars) {
    using Scalars = std::remove_cvref_t<decltype(scalars)>;
    return scalars ? Scalars(scalars.data, a.length, model_.heads, 0) : Scalars();
  };
  return {every_row(parameters_.scalars(name)), every_row(parameters_.d_scalars(name))};
}

template <class T>
Gate<T> AttentionHeads<T>::gate(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  if (!plan.gates_heads) return {};
  if (gates_by_weights(plan)) return {a.block[layer].attention.gate, a.d_head_gate};
  return coefficients_.gate(a.coefficients, fmt::format("attention_gate.{}", layer));
}

template <class T>
Gate<T> AttentionHeads<T>::composition_weights(const Activations<T>& a, int layer, const char* part) const {
  return coefficients_.gate(a.coefficients, fmt::format("composition.{}.{}", layer, part));
}

NANORUN_INSTANTIATE(class AttentionHeads);

}  // namespace nanorun
