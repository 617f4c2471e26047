#include "src/model/stream_mixes.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;

template <class T>
MixTerms<T> StreamMixes<T>::first(const Activations<T>& a) const {
  MixTerms<T> terms;
  if (!a.input.first) return terms;
  terms.add(a.input.x0, {});
  if (!a.input.second) return terms;
  add_injection(terms, a, 0, Injected::second);
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::before(const Activations<T>& a, int layer) const {
  if (model_.residual == Residual::unet) return unet_before(a, layer);
  if (mixes_before()) return injected_before(a, layer);
  if (a.plan[layer].mudd) return mudd_before(a, layer);
  MixTerms<T> terms;
  terms.add(a.layer_input(layer), a.d_x);
  add_gated_skip(terms, a, a.plan[layer]);
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::injected_before(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const ops::LearnedScalar<T> r = parameters_.factor(block_name(layer, "residual_mix"));
  MixTerms<T> terms;
  terms.add(a.layer_input(layer), a.d_x).scalars[0] = r;
  if (plan.skip_input >= 0) add_gated_skip(terms, a, plan).scalars[1] = r;
  add_injection(terms, a, layer, Injected::x0);
  if (plan.injects_second) add_injection(terms, a, layer, Injected::second);
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::unet_before(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const std::string name = block_name(layer, "residual_mix");
  MixTerms<T> terms;
  terms.add(a.layer_input(layer), a.d_x).scalars[0] = parameters_.factor(name, 0);
  if (plan.skip_input >= 0) {
    ops::MixTerm<T>& skip = add_skip(terms, a, plan);
    skip.scalars = {parameters_.factor(name, 0), parameters_.factor(fmt::format("skip.{}", plan.skip))};
  }
  ops::MixTerm<T>& x0 = terms.add(a.input.x0, a.d_x0);
  x0.scalars[0] = parameters_.factor(name, 1);
  x0.overwrites = plan.starts_x0_gradient;
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::mudd_before(const Activations<T>& a, int layer) const {
  MixTerms<T> terms;
  terms.add(a.layer_input(layer), a.d_x);
  terms.add(a.layer_input(layer), a.d_x).per_token = column(a, "mudd.before.input");
  add_layer_input(terms, a, 0, "mudd.before.first");
  add_layer_input(terms, a, late_input(), "mudd.before.late");
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::after_attention(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const BlockActivations<T>& block = a.block[layer];
  if (plan.mudd) return mudd_after_attention(a, layer);
  MixTerms<T> terms;
  if (mixes_before()) {
    add_norm(terms, block.attention.norm, a.d_x);
  } else {
    ops::MixTerm<T>& stream = add_stream(terms, a, layer);
    stream.scalars[0] = attention_residual(layer);
    if (plan.hands_on_factor) stream.d_source = {};
  }
  ops::MixTerm<T>& attention = terms.add(block.attention_out, {});
  attention.implied = plan.attention_is_implied && !block.recomputes_attention_out;
  attention.scalars = attention_factors(layer);
  leave_factor(attention, a);
  if (mixes_before()) return terms;
  add_injection(terms, a, layer, Injected::x0);
  if (plan.injects_second) add_injection(terms, a, layer, Injected::second);
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::mudd_after_attention(const Activations<T>& a, int layer) const {
  MixTerms<T> terms;
  add_stream(terms, a, layer).per_token = column(a, "mudd.after_attention.stream");
  ops::MixTerm<T>& attention = terms.add(a.block[layer].attention_out, a.d_branch_out);
  attention.scalars[0] = projection_factor(layer);
  attention.per_token = column(a, "mudd.after_attention.attention");
  attention.overwrites = true;
  add_layer_input(terms, a, 0, "mudd.after_attention.first");
  if (a.plan[layer].sends_to_second) {
    ops::MixTerm<T>& second = terms.add(a.input.second, a.d_second);
    second.per_token = column(a, "mudd.after_attention.bigram");
    second.overwrites = true;
  }
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::after_mlp(const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const BlockActivations<T>& block = a.block[layer];
  if (plan.mudd) return mudd_after_mlp(a, layer);
  MixTerms<T> terms;
  ops::MixTerm<T>& stream = add_stream_before_mlp(terms, a, layer);
  stream.scalars[0] = mlp_residual(layer);
  ops::MixTerm<T>& mlp = terms.add(block.mlp_out, a.d_branch_out);
  mlp.scalars[0] = parameters_.factor(block_name(layer, "mlp_post"));
  mlp.overwrites = true;
  mlp.implied = plan.mlp_is_implied && !block.recomputes_mlp_out;
  if (plan.leaves_factors) {
    stream.d_source = {};
    leave_factor(mlp, a);
  }
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::mudd_after_mlp(const Activations<T>& a, int layer) const {
  MixTerms<T> terms;
  add_stream_before_mlp(terms, a, layer).per_token = column(a, "mudd.after_mlp.stream");
  ops::MixTerm<T>& mlp = terms.add(a.block[layer].mlp_out, a.d_branch_out);
  mlp.per_token = column(a, "mudd.after_mlp.mlp");
  mlp.overwrites = true;
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::values(const Activations<T>& a, int layer, Mat<T> values) const {
  MixTerms<T> terms;
  if (values) terms.add(values, {});
  add_layer_input(terms, a, 0, "mudd.values.first").constant = model_.mudd_value_scale;
  add_layer_input(terms, a, late_input(), "mudd.values.late").constant = model_.mudd_value_scale;
  add_layer_input(terms, a, layer, "mudd.values.input").constant = model_.mudd_value_scale;
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::last(const Activations<T>& a) const {
  MixTerms<T> terms;
  if (!a.plan.back().enters_last_mix) return terms;
  if (a.plan.back().mudd) return mudd_last(a);
  terms.add(a.layer_input(model_.layers), a.d_x);
  const int backed_out = model_.backout_from + 1;
  const Mat<T> d_source = a.training() ? a.d_layer_input[backed_out] : Mat<T>();
  ops::MixTerm<T>& backout = terms.add(a.layer_input(backed_out), d_source);
  backout.constant = -1;
  backout.scalars[0] = parameters_.factor("backout");
  backout.overwrites = true;
  return terms;
}

template <class T>
MixTerms<T> StreamMixes<T>::mudd_last(const Activations<T>& a) const {
  MixTerms<T> terms;
  terms.add(a.layer_input(model_.layers), a.d_x);
  add_layer_input(terms, a, 0, "mudd.last.first").overwrites = true;
  add_layer_input(terms, a, late_input(), "mudd.last.late").overwrites = true;
  add_layer_input(terms, a, model_.layers - 1, "mudd.last.input").overwrites = true;
  const Mat<T> d_rows = a.d_value_rows.empty() ? Mat<T>() : a.d_value_rows[0];
  ops::MixTerm<T>& rows = terms.add(a.block[model_.value_layers[0]].attention.value_rows, d_rows);
  rows.per_token = column(a, "mudd.last.value_rows");
  rows.overwrites = true;
  add_layer_input(terms, a, model_.skip_from[0] + 1, "mudd.last.skip").overwrites = true;
  return terms;
}

template <class T>
std::vector<ops::SharingMix<T>> StreamMixes<T>::injections(const Activations<T>& a, const InjectionSum& sum) const {
  std::vector<ops::SharingMix<T>> mixes;
  if (sum.begin < 0) {
    ops::SharingMix<T>& first = mixes.emplace_back();
    first.g = a.d_x;
    first.coefficient[0].present = true;
    if (a.input.first && a.input.second) first.coefficient[1] = injection(a, 0, Injected::second);
  }
  for (int layer = std::max(sum.begin, 0); layer < sum.end; ++layer) {
    const BlockPlan& plan = a.plan[layer];
    if (!plan.adds_injections) continue;
    ops::SharingMix<T>& mix = mixes.emplace_back();
    mix.g = a.block[layer].mlp.d_x;
    mix.coefficient[0] = injection(a, layer, Injected::x0);
    if (plan.injects_second) mix.coefficient[1] = injection(a, layer, Injected::second);
    const bool implied = plan.attention_is_implied && !a.block[layer].recomputes_attention_out;
    if (implied && !mixes_before()) mix.implied.scalars = attention_factors(layer);
  }
  return mixes;
}

template <class T>
ops::MixTerm<T>& StreamMixes<T>::add_norm(MixTerms<T>& terms, const NormActivations<T>& norm, Mat<T> d_source) const {
  ops::MixTerm<T>& term = terms.add(norm.n, d_source);
  term.rstd = norm.rstd.data();
  return term;
}

template <class T>
ops::MixTerm<T>& StreamMixes<T>::add_stream(MixTerms<T>& terms, const Activations<T>& a, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const BlockActivations<T>& block = a.block[layer];
  if (plan.input_is_norm) return add_norm(terms, block.attention.norm, a.d_x);
  return terms.add(plan.mixes_input ? block.x_mixed : a.layer_input(layer), a.d_x);
}

template <class T>
ops::MixTerm<T>& StreamMixes<T>::add_stream_before_mlp(MixTerms<T>& terms, const Activations<T>& a, int layer) const {
  if (!a.plan[layer].attends) return add_stream(terms, a, layer);
  return add_norm(terms, a.block[layer].mlp.norm, a.d_x);
}

template <class T>
ops::MixTerm<T>& StreamMixes<T>::add_layer_input(MixTerms<T>& terms, const Activations<T>& a, int layer,
                                                 const char* column) const {
  const Mat<T> d_source = a.training() ? a.d_layer_input[layer] : Mat<T>();
  ops::MixTerm<T>& term = terms.add(a.layer_input(layer), d_source);
  term.per_token = this->column(a, column);
  return term;
}

template <class T>
ops::MixTerm<T>& StreamMixes<T>::add_skip(MixTerms<T>& terms, const Activations<T>& a, const BlockPlan& plan) const {
  const Mat<T>& d_source = plan.sends_skip_gradient ? a.d_layer_input[plan.skip_input] : a.d_x;
  ops::MixTerm<T>& skip = terms.add(a.layer_input(plan.skip_input), d_source);
  skip.overwrites = plan.starts_skip_gradient;
  return skip;
}

template <class T>
ops::MixTerm<T>& StreamMixes<T>::add_gated_skip(MixTerms<T>& terms, const Activations<T>& a,
                                                const BlockPlan& plan) const {
  ops::MixTerm<T>& skip = add_skip(terms, a, plan);
  skip.scalars[0] = parameters_.sigmoid_factor("skip_factor", plan.skip);
  if (coefficients_.has("skip")) skip.per_token = coefficients_.factor(a.coefficients, "skip");
  const Mat<acc_t<T>>&gate = a.input.skip_gate, &d_gate = a.d_skip_gate;
  if (gate) skip.per_token = {gate.data + plan.skip, d_gate ? d_gate.data + plan.skip : nullptr, gate.ld};
  return skip;
}

template <class T>
void StreamMixes<T>::add_injection(MixTerms<T>& terms, const Activations<T>& a, int layer, Injected injected) const {
  const ops::MixCoefficient<T> coefficient = injection(a, layer, injected);
  ops::MixTerm<T>& term = terms.add(injected == Injected::x0 ? a.input.x0 : a.input.second, {});
  term.scalars[0] = coefficient.scalar;
  term.per_token = coefficient.per_token;
  term.shared = true;
}

template <class T>
ops::MixCoefficient<T> StreamMixes<T>::injection(const Activations<T>& a, int layer, Injected injected) const {
  const std::string column = fmt::format("injection.{}.{}", layer, injected == Injected::x0 ? "x0" : "bigram");
  if (coefficients_.has(column)) {
    return {.present = true, .scalar = {}, .per_token = coefficients_.factor(a.coefficients, column)};
  }
  return {.present = true,
          .scalar = parameters_.factor(block_name(layer, "injection"), static_cast<int>(injected)),
          .per_token = {}};
}

template <class T>
void StreamMixes<T>::leave_factor(ops::MixTerm<T>& branch, const Activations<T>& a) const {
  branch.d_source = {};
  branch.factor_out = a.d_branch_factor.data();
}

template <class T>
ops::LearnedScalar<T> StreamMixes<T>::projection_factor(int layer) const {
  return parameters_.factor(block_name(layer, "attention_factors"), 1);
}

template <class T>
std::array<ops::LearnedScalar<T>, 2> StreamMixes<T>::attention_factors(int layer) const {
  if (mixes_before()) return {projection_factor(layer)};
  return {parameters_.factor(block_name(layer, "attention_post")), projection_factor(layer)};
}

NANORUN_INSTANTIATE(class StreamMixes);

}  // namespace nanorun
