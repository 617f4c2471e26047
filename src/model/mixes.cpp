#include "src/model/mixes.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Vec;

namespace {

/// Columns of the net "mudd_net.0", in their order.
enum MuddColumn {
  values_first,
  values_late,
  values_own,
  before_first,
  before_late,
  before_own,
  value_gate_low,
  value_gate_high,
  attention_stream,
  attention_out,
  attention_first,
  attention_bigram,
  mlp_stream,
  mlp_out,
};
static_assert(value_gate_low == mudd_value_gates);

}  // namespace

template <class T>
MixTerms<T> Mixes<T>::first(const Activations<T>& a) const {
  MixTerms<T> terms;
  if (!a.input.bigram) return terms;
  terms.add(a.input.x0, {});
  add_injection(terms, a.input.bigram, a, 0, 1);
  return terms;
}

template <class T>
MixTerms<T> Mixes<T>::before(const Activations<T>& a, int layer) const {
  if (model_.residual == Residual::unet) return unet_before(a, layer);
  MixTerms<T> terms;
  const Mat<T>& x = a.x_at(layer);
  if (layer == model_.skip_to) {
    terms.add(x, a.d_x);
    const int from = model_.skip_from + 1;
    const Mat<T> d_skip = from == layer || a.d_place.empty() ? a.d_x : a.d_place[from];
    ops::MixTerm<T>& skip = terms.add(a.x_at(from), d_skip);
    skip.scalars[0] = parameters_.factor("skip_factor", 0, true);
    if (coefficients_.has("skip")) skip.per_token = coefficients_.factor(a.coefficients, "skip", 0);
    if (a.input.skip_gate) skip.per_token = {a.input.skip_gate.data, a.d_skip_gate.data};
  }
  if (mixes_by_mudd(model_, layer)) {
    terms.add(x, a.d_x);
    terms.add(x, a.d_x).per_token = coefficients_.factor(a.coefficients, "mudd.mix", before_own);
    add_place(terms, a, 0, "mudd.mix", before_first);
    add_place(terms, a, model_.attention_source + 1, "mudd.mix", before_late);
  }
  return terms;
}

template <class T>
MixTerms<T> Mixes<T>::unet_before(const Activations<T>& a, int layer) const {
  const std::string name = block_name(layer, "residual_mix");
  const int half = model_.layers / 2;
  MixTerms<T> terms;
  terms.add(a.x_at(layer), a.d_x).scalars[0] = parameters_.factor(name, 0);
  if (layer >= half) {
    const int from = model_.layers - layer;
    const bool own = from == layer;
    const Mat<T> d_skip = own || a.d_place.empty() ? a.d_x : a.d_place[from];
    ops::MixTerm<T>& skip = terms.add(a.x_at(from), d_skip);
    skip.overwrites = !own;
    skip.scalars = {parameters_.factor(name, 0), parameters_.factor(fmt::format("skip.{}", layer - half))};
  }
  ops::MixTerm<T>& x0 = terms.add(a.input.x0, a.d_x0);
  x0.scalars[0] = parameters_.factor(name, 1);
  x0.overwrites = layer + 1 == model_.layers;
  return terms;
}

template <class T>
MixTerms<T> Mixes<T>::after_attention(const Activations<T>& a, int layer) const {
  MixTerms<T> terms;
  const BlockActivations<T>& s = a.block[layer];
  if (mixes_by_mudd(model_, layer)) {
    add_input(terms, a, layer).per_token = coefficients_.factor(a.coefficients, "mudd.mix", attention_stream);
    ops::MixTerm<T>& out = terms.add(s.attention_out, a.d_branch);
    out.scalars[0] = projection_factor(layer);
    out.per_token = coefficients_.factor(a.coefficients, "mudd.mix", attention_out);
    out.overwrites = true;
    add_place(terms, a, 0, "mudd.mix", attention_first);
    if (a.input.bigram) {
      ops::MixTerm<T>& bigram = terms.add(a.input.bigram, a.d_bigram);
      bigram.per_token = coefficients_.factor(a.coefficients, "mudd.mix", attention_bigram);
      bigram.overwrites = true;
    }
    return terms;
  }
  ops::MixTerm<T>& stream = add_input(terms, a, layer);
  stream.scalars[0] = attention_residual(layer);
  if (s.hands_on_factor) stream.d_source = {};
  ops::MixTerm<T>& out = terms.add(s.attention_out, a.d_branch);
  out.implied = implies_attention(model_, layer) && !s.attention_is_read;
  out.scalars = attention_factors(layer);
  leave_factor(out, a);
  add_injection(terms, a.input.x0, a, layer, 0);
  if (a.input.bigram && layer > 0) add_injection(terms, a.input.bigram, a, layer, 1);
  return terms;
}

template <class T>
std::vector<ops::SharingMix<T>> Mixes<T>::injections(const Activations<T>& a, int begin, int end) const {
  std::vector<ops::SharingMix<T>> mixes;
  if (begin < 0) {
    ops::SharingMix<T>& first = mixes.emplace_back();
    first.g = a.d_x;
    first.coefficient[0].present = true;
    if (a.input.bigram) first.coefficient[1] = injection(a, 0, 1);
  }
  for (int layer = std::max(begin, 0); layer < end; ++layer) {
    if (!injects(model_, layer)) continue;
    ops::SharingMix<T>& mix = mixes.emplace_back();
    mix.g = a.block[layer].mlp.n;
    mix.coefficient[0] = injection(a, layer, 0);
    if (a.input.bigram && layer > 0) mix.coefficient[1] = injection(a, layer, 1);
    const bool implied = implies_attention(model_, layer) && !a.block[layer].attention_is_read;
    if (implied) mix.implied.scalars = attention_factors(layer);
  }
  return mixes;
}

template <class T>
MixTerms<T> Mixes<T>::after_mlp(const Activations<T>& a, int layer) const {
  MixTerms<T> terms;
  const BlockActivations<T>& s = a.block[layer];
  ops::MixTerm<T>& stream =
      has_attention(model_, layer) ? add_norm(terms, s.mlp.n, s.mlp.rstd, a.d_x) : add_input(terms, a, layer);
  ops::MixTerm<T>& out = terms.add(s.mlp_out, a.d_branch);
  out.overwrites = true;
  out.implied = implies_mlp(model_, layer) && !s.mlp_is_read;
  if (mixes_by_mudd(model_, layer)) {
    stream.per_token = coefficients_.factor(a.coefficients, "mudd.mix", mlp_stream);
    out.per_token = coefficients_.factor(a.coefficients, "mudd.mix", mlp_out);
  } else {
    stream.scalars[0] = mlp_residual(layer);
    out.scalars[0] = parameters_.factor(block_name(layer, "mlp_post"));
    if (injects(model_, layer)) {
      stream.d_source = {};
      leave_factor(out, a);
    }
  }
  return terms;
}

template <class T>
MixTerms<T> Mixes<T>::values(const Activations<T>& a, int layer, Mat<T> aux) const {
  MixTerms<T> terms;
  if (aux) terms.add(aux, {});
  add_place(terms, a, 0, "mudd.mix", values_first).constant = model_.mudd_value_scale;
  add_place(terms, a, model_.attention_source + 1, "mudd.mix", values_late).constant = model_.mudd_value_scale;
  add_place(terms, a, layer, "mudd.mix", values_own).constant = model_.mudd_value_scale;
  return terms;
}

template <class T>
MixTerms<T> Mixes<T>::last(const Activations<T>& a) const {
  MixTerms<T> terms;
  if (!model_.mudd) return terms;
  terms.add(a.x_at(model_.layers), a.d_x);
  add_place(terms, a, 0, "mudd.final", 0).overwrites = true;
  add_place(terms, a, model_.attention_source + 1, "mudd.final", 1).overwrites = true;
  add_place(terms, a, model_.layers - 1, "mudd.final", 2).overwrites = true;
  const Mat<T> d_rows = a.d_value.empty() ? Mat<T>() : a.d_value[0];
  ops::MixTerm<T>& rows = terms.add(a.block[model_.value_layers[0]].attention.value, d_rows);
  rows.per_token = coefficients_.factor(a.coefficients, "mudd.final", 3);
  rows.overwrites = true;
  add_place(terms, a, model_.skip_from + 1, "mudd.final", 4).overwrites = true;
  return terms;
}

template <class T>
ops::MixTerm<T>& Mixes<T>::add_norm(MixTerms<T>& terms, Mat<T> n, Vec<const acc_t<T>> rstd, Mat<T> d_source) const {
  ops::MixTerm<T>& term = terms.add(n, d_source);
  term.rstd = rstd.data();
  return term;
}

template <class T>
ops::MixTerm<T>& Mixes<T>::add_input(MixTerms<T>& terms, const Activations<T>& a, int layer) const {
  const BlockActivations<T>& s = a.block[layer];
  const Mat<T>& x = s.x_before ? s.x_before : a.x_at(layer);
  return x ? terms.add(x, a.d_x) : add_norm(terms, s.attention.n, s.attention.rstd, a.d_x);
}

template <class T>
ops::MixTerm<T>& Mixes<T>::add_place(MixTerms<T>& terms, const Activations<T>& a, int place, const char* columns,
                                     int index) const {
  const Mat<T> d_source = a.d_place.empty() ? Mat<T>() : a.d_place[place];
  ops::MixTerm<T>& term = terms.add(a.x_at(place), d_source);
  term.per_token = coefficients_.factor(a.coefficients, columns, index);
  return term;
}

template <class T>
void Mixes<T>::add_injection(MixTerms<T>& terms, Mat<T> source, const Activations<T>& a, int layer, int index) const {
  const ops::MixCoefficient<T> coefficient = injection(a, layer, index);
  ops::MixTerm<T>& term = terms.add(source, {});
  term.scalars[0] = coefficient.scalar;
  term.per_token = coefficient.per_token;
  term.shared = true;
}

template <class T>
ops::LearnedScalar<T> Mixes<T>::projection_factor(int layer) const {
  return parameters_.factor(block_name(layer, "attention_factors"), 1);
}

template <class T>
std::array<ops::LearnedScalar<T>, 2> Mixes<T>::attention_factors(int layer) const {
  return {parameters_.factor(block_name(layer, "attention_post")), projection_factor(layer)};
}

template <class T>
void Mixes<T>::leave_factor(ops::MixTerm<T>& branch, const Activations<T>& a) const {
  branch.d_source = {};
  branch.factor_out = a.d_branch_factor.data();
}

template <class T>
ops::MixCoefficient<T> Mixes<T>::injection(const Activations<T>& a, int layer, int index) const {
  const std::string columns = fmt::format("injection.{}", layer);
  if (coefficients_.has(columns)) return {true, {}, coefficients_.factor(a.coefficients, columns, index)};
  return {true, parameters_.factor(block_name(layer, "injection"), index), {}};
}

NANORUN_INSTANTIATE(class Mixes);

}  // namespace nanorun
