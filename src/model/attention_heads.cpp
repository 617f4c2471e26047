#include "src/model/attention_heads.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

template <class T>
Mat<T> AttentionHeads<T>::forward(Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                  const std::int32_t* first_key, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  Mat<T> y = s.y;
  if (s.y_composed) {
    ops::attention_composition_forward<T>(stream, s.y_composed, y, composition(a, in, first_key, layer), a.workspace);
    y = s.y_composed;
  }
  if (!has_xsa(layer) && !is_gated(layer)) return y;
  if (gated_by_itself(layer)) {
    ops::attention_gate_forward<T>(stream, s.gate, {s.n.col_block(0, gate_columns), {}, 1},
                                   parameters_.scalars(block_name(layer, "attention_gate")));
  }
  ops::attention_xsa_forward<T>(stream, a.aux, output(a, layer));
  return a.aux;
}

template <class T>
Mat<const T> AttentionHeads<T>::again(Stream stream, const Activations<T>& a, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  if (!has_xsa(layer) && !is_gated(layer)) return s.y_composed ? s.y_composed : s.y;
  ops::attention_xsa_forward<T>(stream, a.aux, output(a, layer));
  return a.aux;
}

template <class T>
Mat<const T> AttentionHeads<T>::backward(Stream stream, const Activations<T>& a, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  if (!has_xsa(layer) && !is_gated(layer)) return s.y_composed ? s.y_composed : s.y;
  ops::attention_xsa_backward<T>(stream, gradients(a, layer), a.aux, a.d_narrow, output(a, layer));
  return a.aux;
}

template <class T>
void AttentionHeads<T>::backward_composition(Stream stream, const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                             const std::int32_t* first_key, Mat<T> d_k, Mat<T> d_v, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  if (s.y_composed) {
    const std::string columns = fmt::format("composition.{}", layer);
    ops::AttentionCompositionGradients<T> d;
    d.d_q = a.d_q;
    d.d_k = d_k;
    d.d_v = d_v;
    d.d_w1 = coefficients_.gate(a.coefficients, columns, 0, model_.heads).gradient;
    d.d_w2 = coefficients_.gate(a.coefficients, columns, model_.heads, model_.heads).gradient;
    ops::attention_composition_backward<T>(stream, d, a.d_narrow, composition(a, in, first_key, layer), a.workspace);
  }
}

template <class T>
void AttentionHeads<T>::backward_gate(Stream stream, const Activations<T>& a, int layer) const {
  if (!gated_by_itself(layer)) return;
  const AttentionActivations<T>& s = a.block[layer].attention;
  const std::string w = block_name(layer, "attention_gate");
  ops::attention_gate_backward<T>(stream, s.d_n.col_block(0, gate_columns), {}, parameters_.d_scalars(w), a.d_head_gate,
                                  s.gate, {s.n.col_block(0, gate_columns), {}, 1}, parameters_.scalars(w));
}

template <class T>
ops::AttentionComposition<T> AttentionHeads<T>::composition(const Activations<T>& a, const ops::AttentionInputs<T>& in,
                                                            const std::int32_t* first_key, int layer) const {
  const std::string columns = fmt::format("composition.{}", layer);
  const Gate<T> w1 = coefficients_.gate(a.coefficients, columns, 0, model_.heads);
  const Gate<T> w2 = coefficients_.gate(a.coefficients, columns, model_.heads, model_.heads);
  return {in, w1.value, w2.value, model_.composition_window, first_key};
}

template <class T>
ops::AttentionXsa<T> AttentionHeads<T>::output(const Activations<T>& a, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  return {model_.heads, s.y_composed ? s.y_composed : s.y, s.v_mixed, xsa(a, layer).value, gate(a, layer).value};
}

template <class T>
ops::AttentionXsaGradients<T> AttentionHeads<T>::gradients(const Activations<T>& a, int layer) const {
  return {a.d_narrow, value_gradient(a, layer), xsa(a, layer).gradient, gate(a, layer).gradient};
}

/// Without a net, learned scalars: every token's row is theirs.
template <class T>
Gate<T> AttentionHeads<T>::xsa(const Activations<T>& a, int layer) const {
  if (!has_xsa(layer)) return {};
  if (model_.gate_nets) return coefficients_.gate(a.coefficients, fmt::format("xsa.{}", layer), 0, model_.heads);
  const std::string name = block_name(layer, "xsa");
  const auto every_row = [&](const auto& scalars) {
    using Scalars = std::remove_cvref_t<decltype(scalars)>;
    return scalars ? Scalars(scalars.data, a.length, model_.heads, 0) : Scalars();
  };
  return {every_row(parameters_.scalars(name)), every_row(parameters_.d_scalars(name))};
}

template <class T>
Gate<T> AttentionHeads<T>::gate(const Activations<T>& a, int layer) const {
  if (!is_gated(layer)) return {};
  if (gated_by_itself(layer)) return {a.block[layer].attention.gate, a.d_head_gate};
  return coefficients_.gate(a.coefficients, fmt::format("attention_gate.{}", layer), 0, model_.heads);
}

NANORUN_INSTANTIATE(class AttentionHeads);

}  // namespace nanorun
