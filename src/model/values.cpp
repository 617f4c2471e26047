#include "src/model/values.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

namespace {

/// Columns of n, and as many of the embedding's row, that a gate reads.
constexpr int half_gate = gate_columns / 2;

}  // namespace

template <class T>
std::string Values<T>::table(int layer) const {
  return fmt::format("value_embedding.{}", value_embedding_of(model_, layer));
}

template <class T>
ops::GateInputs<T> Values<T>::gate_inputs(const Activations<T>& a, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  if (names(model_.value_layers_gated_by_input, layer)) return {s.n.col_block(0, gate_columns), {}, 2};
  return {s.n.col_block(0, half_gate), s.value.col_block(0, half_gate), 2};
}

template <class T>
Gate<T> Values<T>::gate(const Activations<T>& a, int layer) const {
  if (mixes_by_mudd(model_, layer)) return coefficients_.gate(a.coefficients, "mudd.mix", mudd_value_gates, 2);
  return {a.block[layer].attention.value_gate, a.d_value_gate};
}

template <class T>
ops::ValueMix<T> Values<T>::forward(Stream stream, const Activations<T>& a, const DeviceSequence& sequence,
                                    int layer) const {
  if (gated(layer)) {
    const AttentionActivations<T>& s = a.block[layer].attention;
    ops::embedding_forward<T>(stream, s.value, sequence.tokens, parameters_.weight(table(layer)));
    if (s.value_gate) {
      ops::attention_gate_forward<T>(stream, s.value_gate, gate_inputs(a, layer),
                                     parameters_.scalars(block_name(layer, "value_gate")));
    }
    ops::attention_scale_forward<T>(stream, a.aux, s.value, gate(a, layer).value, model_.heads, false);
    if (mixes_by_mudd(model_, layer)) ops::mix_forward<T>(stream, a.aux, mixes_.values(a, layer, a.aux));
  }
  return mix(a, sequence, layer);
}

template <class T>
ops::ValueMix<T> Values<T>::mix(const Activations<T>& a, const DeviceSequence& sequence, int layer) const {
  ops::ValueMix<T> mix;
  mix.in_place = !takes_up_values(model_, layer);
  if (model_.residual == Residual::scaled) {
    mix.lambda = parameters_.scalars(block_name(layer, "attention_factors")).data;
    mix.unit_source = true;
    if (gated(layer)) mix.source = a.aux;
    return mix;
  }
  mix.lambda = parameters_.scalars(block_name(layer, "value_mix")).data;
  if (value_embedding_of(model_, layer) >= 0) {
    mix.source = parameters_.weight(table(layer));
    mix.index = sequence.tokens.data();
  }
  if (model_.value_path == ValuePath::first) {
    mix.interpolate = true;
    mix.source = a.v_first;
  }
  return mix;
}

template <class T>
ops::ValueMixGradients<T> Values<T>::gradients(const Activations<T>& a, int layer) const {
  ops::ValueMixGradients<T> d;
  if (model_.residual == Residual::scaled) {
    d.d_lambda = parameters_.d_scalars(block_name(layer, "attention_factors")).data;
    return d;
  }
  d.d_lambda = parameters_.d_scalars(block_name(layer, "value_mix")).data;
  if (const int table = value_embedding_of(model_, layer); table >= 0) d.d_rows = a.d_value[table];
  if (model_.value_path == ValuePath::first) d.d_source = a.d_v_first;
  return d;
}

template <class T>
void Values<T>::backward(Stream stream, const Activations<T>& a, const DeviceSequence& sequence, Mat<T> d_v,
                         int layer) const {
  if (!gated(layer)) return;
  const Mat<T>& rows = a.block[layer].attention.value;
  if (!keeps_value_rows(model_, layer)) {
    ops::embedding_forward<T>(stream, rows, sequence.tokens, parameters_.weight(table(layer)));
  }
  const Mat<T>& d_value = a.d_value[value_embedding_of(model_, layer)];
  const Gate<T> gate = this->gate(a, layer);
  if (mixes_by_mudd(model_, layer)) {
    ops::mix_backward<T>(stream, {.d_out = d_v}, mixes_.values(a, layer, {}));
  } else {
    ops::fill<acc_t<T>>(stream, elements(gate.gradient), 0);
  }
  const bool joins = model_.mudd && value_embedding_of(model_, layer) == 0;  // what Mixes::last() has sent
  ops::attention_scale_backward<T>(stream, d_value, gate.gradient, d_v, rows, gate.value, model_.heads, joins);
}

template <class T>
void Values<T>::backward_gates(Stream stream, const Activations<T>& a, int layer) const {
  if (!gated(layer) || mixes_by_mudd(model_, layer)) return;
  const Mat<T>& d_value = a.d_value[value_embedding_of(model_, layer)];
  const std::string w = block_name(layer, "value_gate");
  const ops::GateInputs<T> in = gate_inputs(a, layer);
  const AttentionActivations<T>& s = a.block[layer].attention;
  ops::attention_gate_backward<T>(stream, s.d_n.col_block(0, in.x.cols),
                                  in.u ? d_value.col_block(0, in.u.cols) : Mat<T>(), parameters_.d_scalars(w),
                                  a.d_value_gate, s.value_gate, in, parameters_.scalars(w));
}

template <class T>
void Values<T>::backward_table(Stream stream, const Activations<T>& a, const DeviceSequence& sequence,
                               int layer) const {
  const int own = value_embedding_of(model_, layer);
  const auto reads = [&](int i) { return has_attention(model_, i) && value_embedding_of(model_, i) == own; };
  if (own < 0 || !reads(layer)) return;
  for (int below = 0; below < layer; ++below) {
    if (reads(below)) return;
  }
  ops::embedding_backward<T>(stream, parameters_.gradient(table(layer)), sequence.tokens, sequence.order,
                             a.d_value[own], a.value_workspace);
}

NANORUN_INSTANTIATE(class Values);

}  // namespace nanorun
