#include "src/model/attention_values.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

template <class T>
std::string AttentionValues<T>::table_name(const BlockPlan& plan) const {
  return fmt::format("value_embedding.{}", plan.value_table);
}

template <class T>
ops::GateInputs<T> AttentionValues<T>::gate_inputs(const Activations<T>& a, int layer) const {
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const int columns = model_.gate_columns, half = columns / 2;
  if (!a.plan[layer].gates_read_rows) return {saved.norm.n.col_block(0, columns), {}, 2};
  return {saved.norm.n.col_block(0, half), saved.value_rows.col_block(0, half), 2};
}

template <class T>
Gate<T> AttentionValues<T>::gate(const Activations<T>& a, int layer) const {
  if (a.plan[layer].mudd) return coefficients_.gate(a.coefficients, "mudd.value_gates");
  return {a.block[layer].attention.value_gate, a.d_value_gate};
}

template <class T>
ops::ValueResidual<T> AttentionValues<T>::forward(Stream stream, const Activations<T>& a,
                                                  const DeviceSequence& sequence, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  if (plan.gates_value_rows) {
    const AttentionActivations<T>& saved = a.block[layer].attention;
    ops::embedding_forward<T>(stream, saved.value_rows, sequence.tokens, parameters_.weight(table_name(plan)));
    if (saved.value_gate) {
      ops::attention_gate_forward<T>(stream, saved.value_gate, gate_inputs(a, layer),
                                     parameters_.scalars(block_name(layer, "value_gate")));
    }
    ops::attention_scale_forward<T>(stream, a.value_source, saved.value_rows, gate(a, layer).value, model_.heads,
                                    kernels::Output::overwrite);
    if (plan.mudd) ops::mix_forward<T>(stream, a.value_source, mixes_.values(a, layer, a.value_source));
  }
  return residual(a, sequence, layer);
}

template <class T>
ops::ValueResidual<T> AttentionValues<T>::residual(const Activations<T>& a, const DeviceSequence& sequence,
                                                   int layer) const {
  const BlockPlan& plan = a.plan[layer];
  ops::ValueResidual<T> residual;
  residual.in_place = !plan.takes_up_values;
  if (!plan.scales_values && !plan.mixes_values) return residual;
  if (plan.scales_values) {
    residual.lambda = parameters_.scalars(block_name(layer, "attention_factors")).data;
    residual.unit_source = true;
    if (plan.gates_value_rows) residual.source = a.value_source;
    return residual;
  }
  residual.lambda = parameters_.scalars(block_name(layer, "value_mix")).data;
  if (plan.value_table >= 0) {
    residual.source = parameters_.weight(table_name(plan));
    residual.index = sequence.tokens.data();
  }
  if (plan.takes_up_first_values) {
    residual.interpolate = true;
    residual.source = a.v_first;
  }
  return residual;
}

template <class T>
ops::ValueResidualGradients<T> AttentionValues<T>::residual_gradients(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  ops::ValueResidualGradients<T> d;
  if (!plan.scales_values && !plan.mixes_values) return d;
  if (plan.scales_values) {
    d.d_lambda = parameters_.d_scalars(block_name(layer, "attention_factors")).data;
    return d;
  }
  d.d_lambda = parameters_.d_scalars(block_name(layer, "value_mix")).data;
  if (plan.value_table >= 0) d.d_rows = a.d_value_rows[plan.value_table];
  if (plan.takes_up_first_values) d.d_source = a.d_v_first;
  return d;
}

template <class T>
void AttentionValues<T>::backward(Stream stream, const Activations<T>& a, const DeviceSequence& sequence, Mat<T> d_v,
                                  int layer) const {
  const BlockPlan& plan = a.plan[layer];
  if (!plan.gates_value_rows) return;
  const Mat<T>& rows = a.block[layer].attention.value_rows;
  if (!plan.keeps_value_rows) {
    ops::embedding_forward<T>(stream, rows, sequence.tokens, parameters_.weight(table_name(plan)));
  }
  const Gate<T> gate = this->gate(a, layer);
  if (plan.mudd) {
    ops::mix_backward<T>(stream, {.d_out = d_v}, mixes_.values(a, layer, {}));
  } else {
    ops::fill<acc_t<T>>(stream, elements(gate.gradient), 0);
  }
  ops::attention_scale_backward<T>(stream, a.d_value_rows[plan.value_table], gate.gradient, d_v, rows, gate.value,
                                   model_.heads, kernels::accumulate_if(plan.adds_row_gradient));
}

template <class T>
void AttentionValues<T>::backward_gates(Stream stream, const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  if (!plan.gates_value_rows || plan.mudd) return;
  const Mat<T>& d_rows = a.d_value_rows[plan.value_table];
  const std::string w = block_name(layer, "value_gate");
  const ops::GateInputs<T> in = gate_inputs(a, layer);
  const AttentionActivations<T>& saved = a.block[layer].attention;
  ops::attention_gate_backward<T>(stream, saved.d_norm.col_block(0, in.x.cols),
                                  in.u ? d_rows.col_block(0, in.u.cols) : Mat<T>(), parameters_.d_scalars(w),
                                  a.d_value_gate, saved.value_gate, in, parameters_.scalars(w));
}

template <class T>
void AttentionValues<T>::backward_table(Stream stream, const Activations<T>& a, const DeviceSequence& sequence,
                                        int layer) const {
  const BlockPlan& plan = a.plan[layer];
  if (!plan.completes_value_table) return;
  ops::embedding_backward<T>(stream, parameters_.gradient(table_name(plan)), sequence.tokens, sequence.order,
                             a.d_value_rows[plan.value_table], a.value_workspace);
}

NANORUN_INSTANTIATE(class AttentionValues);

}  // namespace nanorun
