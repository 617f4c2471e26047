#pragma once
// The mixes of streams around and inside the blocks: what each sums, and with which coefficients. ops::mix_forward and
// ops::mix_backward take the same terms, so each mix is written down once.
//
// x is the residual stream, x_k the input of layer k; attention and mlp are what these add to the stream.
//
// Residual::unet (records 13 to 21), layers in two halves; a, s learned:
//   before layer i:  x = a0 x + a1 x0, in the second half x = a0 (x + s x_j) + a1 x0, j = layers - i
//   attention and MLP add to x.
// Residual::before (GPT-2 Medium's record 18); r, a, b, s, l1, beta learned, g the skip's gate, z the second stream:
//   before layer i:  x = r (x + sigmoid(s) g x_skip) + a x0 + b z, the skip in layers of model.skip_to alone
//   after attention: x = x + l1 attention
//   the MLP adds to x
//   last:            x = x - beta x_c, x_c the output of model.backout_from
// Residual::scaled (records 81, 89); r, p, l1, s learned, g gates (a coefficient net's columns, or learned scalars):
//   first:           x = x0 + g z, z the second stream: the rows of bigrams
//   before skip_to:  x = x + sigmoid(s) g x_skip, x_skip the output of model.skip_from
//   after attention: x = r0 x + p0 l1 attention + g x0 + g z
//   after the MLP:   x = r1 x + p1 mlp
// The last layer under MUDD; x_first the input of layer 0, x_late the stream that late layers attend from, x_input the
// layer's input, rows the looked-up rows of the first table of value embeddings. Each coefficient is the column
// mudd.MIX.STREAM of its nets (net_plan.cpp), of which STREAM is written here:
//   values:          v = v + f (first x_first + late x_late + input x_input), f = model.mudd_value_scale;
//                    the two columns mudd.value_gates gate the halves of the heads of its value embedding
//   before:          x = x + input x + first x_first + late x_late
//   after_attention: x = stream x + attention l1 attention_out + first x_first + bigram z
//   after_mlp:       x = stream x + mlp mlp_out
//   last:            x = x + first x_first + late x_late + input x_input + value_rows rows + skip x_skip
//
// Gradients of sources: a term adds its own, but the first to be sent to a stream in a backward pass overwrites what is
// there. With BlockPlan::leaves_factors, the mixes of a block send none to the branches, and the one behind the MLP
// none to the stream: their readers take the gradient g of the sum, and multiply it by the term's factor
// (ops::MixTerm::factor_out). Residual::before leaves l1 alone in this way. The gradients of x0 and of the second
// stream, and of their coefficients, are summed over many blocks at once, see injections().

#include <array>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/coefficients.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Terms of a mix; none where there is no mix.
template <class T>
class MixTerms {
 public:
  operator std::span<const ops::MixTerm<T>>() const { return {terms_.data(), count_}; }
  /// A term with the coefficient 1. source [T, d]; d_source [T, d] is null where no gradient is wanted.
  ops::MixTerm<T>& add(kernels::Mat<const T> source, kernels::Mat<T> d_source) {
    ops::MixTerm<T>& term = terms_.at(count_++);
    term.source = source;
    term.d_source = d_source;
    return term;
  }

 private:
  std::array<ops::MixTerm<T>, kernels::max_mix_terms> terms_;
  std::size_t count_ = 0;
};

template <class T>
class StreamMixes {
 public:
  StreamMixes(const ModelConfig& model, const Parameters<T>& parameters, const Coefficients<T>& coefficients)
      : model_(model), parameters_(parameters), coefficients_(coefficients) {}

  MixTerms<T> first(const Activations<T>& a) const;
  MixTerms<T> before(const Activations<T>& a, int layer) const;
  MixTerms<T> after_attention(const Activations<T>& a, int layer) const;
  MixTerms<T> after_mlp(const Activations<T>& a, int layer) const;
  MixTerms<T> last(const Activations<T>& a) const;
  /// MUDD's mix of the values [T, d] of its layer, which get no gradient here. Null values: the streams alone.
  MixTerms<T> values(const Activations<T>& a, int layer, kernels::Mat<T> values) const;

  /// The mixes of a sum that add x0 and the second stream, for ops::shared_streams_backward. The gradients of what they
  /// make lie in mlp.d_x, that of what the first mix makes in d_x.
  std::vector<ops::SharingMix<T>> injections(const Activations<T>& a, const InjectionSum& sum) const;
  /// r0 and r1 of a layer.
  ops::LearnedScalar<T> attention_residual(int layer) const {
    return parameters_.factor(block_name(layer, "attention_residual"));
  }
  ops::LearnedScalar<T> mlp_residual(int layer) const { return parameters_.factor(block_name(layer, "mlp_residual")); }
  /// The factors of attention's output: l1, with Residual::scaled p0 too.
  std::array<ops::LearnedScalar<T>, 2> attention_factors(int layer) const;

 private:
  enum class Injected { x0, second };

  MixTerms<T> unet_before(const Activations<T>& a, int layer) const;
  MixTerms<T> injected_before(const Activations<T>& a, int layer) const;
  MixTerms<T> mudd_before(const Activations<T>& a, int layer) const;
  MixTerms<T> mudd_after_attention(const Activations<T>& a, int layer) const;
  MixTerms<T> mudd_after_mlp(const Activations<T>& a, int layer) const;
  MixTerms<T> mudd_last(const Activations<T>& a) const;
  /// Adds a stream that is kept as its norm; d_source [T, d] is the stream's gradient.
  ops::MixTerm<T>& add_norm(MixTerms<T>& terms, const NormActivations<T>& norm, kernels::Mat<T> d_source) const;
  /// Adds the stream to which a block adds its attention or, without attention, its MLP.
  ops::MixTerm<T>& add_stream(MixTerms<T>& terms, const Activations<T>& a, int layer) const;
  /// Adds the stream before a block's MLP.
  ops::MixTerm<T>& add_stream_before_mlp(MixTerms<T>& terms, const Activations<T>& a, int layer) const;
  /// Adds the tapped input of a layer, times a column of a MUDD net.
  ops::MixTerm<T>& add_layer_input(MixTerms<T>& terms, const Activations<T>& a, int layer, const char* column) const;
  /// Adds the stream that a block's skip carries.
  ops::MixTerm<T>& add_skip(MixTerms<T>& terms, const Activations<T>& a, const BlockPlan& plan) const;
  /// Adds it times sigmoid(s), and times its gate where it has one.
  ops::MixTerm<T>& add_gated_skip(MixTerms<T>& terms, const Activations<T>& a, const BlockPlan& plan) const;
  void add_injection(MixTerms<T>& terms, const Activations<T>& a, int layer, Injected injected) const;
  ops::MixCoefficient<T> injection(const Activations<T>& a, int layer, Injected injected) const;
  /// Leaves the branch's gradient to its reader, see BranchGradient.
  void leave_factor(ops::MixTerm<T>& branch, const Activations<T>& a) const;
  bool mixes_before() const { return model_.residual == Residual::before; }
  /// The column of a MUDD net.
  ops::PerToken<T> column(const Activations<T>& a, const char* name) const {
    return coefficients_.factor(a.coefficients, name);
  }
  /// l1 of a layer.
  ops::LearnedScalar<T> projection_factor(int layer) const;
  int late_input() const { return model_.attention_source + 1; }

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Coefficients<T>& coefficients_;
};

}  // namespace nanorun
