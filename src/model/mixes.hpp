#pragma once
// The mixes of streams around and inside the blocks: what each sums, and with which coefficients. Forward and backward
// pass read the same terms.
//
// Residual::unet (records 13 to 21), layers in two halves; a, s learned:
//   before layer i:  x = a0 x + a1 x0, in the second half x = a0 (x + s x_j) + a1 x0, j the place opposite to i;
//   attention and MLP add to x.
// Residual::scaled; r, p, l1 learned, g gates (a coefficient net's columns, or learned scalars):
//   first:           x = x0 + g bigram
//   before skip_to:  x = x + sigmoid(s) g x_skip_from
//   after attention: x = r0 x + p0 l1 attention + g x0 + g bigram
//   after the MLP:   x = r1 x + p1 mlp
// The last layer under MUDD, with m and u columns of its nets, c0 the first stream, c3 the one that the skip carries,
// c7 the one that late layers attend from, c9 the layer's input, ve the rows of the first value embedding:
//   values:          aux = aux + f (m0 c0 + m1 c7 + m2 c9), f = model.mudd_value_scale;
//                    m6 and m7 gate the value embedding's halves of heads
//   before:          x = x + m5 x + m3 c0 + m4 c7
//   after attention: x = m8 x + m9 l1 attention + m10 c0 + m11 bigram
//   after the MLP:   x = m12 x + m13 mlp
//   last:            x = x + u0 c0 + u1 c7 + u2 c9 + u3 ve + u4 c3
//
// The term that is the first in the backward pass to send a gradient to a stream overwrites what is there. The
// gradients of x0 and of the bigram embeddings, and of their coefficients, are summed over many layers at once: before
// a net that gives the coefficients has its backward pass.

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

/// Column of mudd.mix with the first gate of the value embedding.
inline constexpr int mudd_value_gates = 6;

/// Terms of a mix; none where the stream goes on as it is.
template <class T>
class MixTerms {
 public:
  bool empty() const { return count_ == 0; }
  operator std::span<const ops::MixTerm<T>>() const { return {terms_.data(), count_}; }
  /// d_source is null where no gradient is wanted.
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
class Mixes {
 public:
  Mixes(const ModelConfig& model, const Parameters<T>& parameters, const Coefficients<T>& coefficients)
      : model_(model), parameters_(parameters), coefficients_(coefficients) {}

  MixTerms<T> first(const Activations<T>& a) const;
  MixTerms<T> before(const Activations<T>& a, int layer) const;
  // Of a layer that injects(), both leave out the gradients of the branches, and the second that of the stream: who
  // needs these takes the sum's and the factor. x0 and the bigram embeddings are shared, see injections().
  MixTerms<T> after_attention(const Activations<T>& a, int layer) const;
  MixTerms<T> after_mlp(const Activations<T>& a, int layer) const;
  /// Of a layer under MUDD; aux without a gradient. A null aux: the streams alone.
  MixTerms<T> values(const Activations<T>& a, int layer, kernels::Mat<T> aux) const;
  MixTerms<T> last(const Activations<T>& a) const;
  /// The mixes of layers [begin, end) that share x0 and the bigram embeddings, with the gradients of their sums: those
  /// that injects() names, which leave them in the place of the MLP's norm, and at -1 the first, whose is d_x.
  std::vector<ops::SharingMix<T>> injections(const Activations<T>& a, int begin, int end) const;
  /// r0 and r1 of a layer.
  ops::LearnedScalar<T> attention_residual(int layer) const {
    return parameters_.factor(block_name(layer, "attention_residual"));
  }
  ops::LearnedScalar<T> mlp_residual(int layer) const { return parameters_.factor(block_name(layer, "mlp_residual")); }

 private:
  MixTerms<T> unet_before(const Activations<T>& a, int layer) const;
  /// Adds a stream that is kept as its norm.
  ops::MixTerm<T>& add_norm(MixTerms<T>& terms, kernels::Mat<T> n, kernels::Vec<const kernels::acc_t<T>> rstd,
                            kernels::Mat<T> d_source) const;
  /// Adds the stream that a block begins with, behind the mix that it may have first.
  ops::MixTerm<T>& add_input(MixTerms<T>& terms, const Activations<T>& a, int layer) const;
  /// Adds the stream at an earlier place with a column of a MUDD net.
  ops::MixTerm<T>& add_place(MixTerms<T>& terms, const Activations<T>& a, int place, const char* columns,
                             int index) const;
  /// Adds x0 or the bigram embeddings.
  void add_injection(MixTerms<T>& terms, kernels::Mat<T> source, const Activations<T>& a, int layer, int index) const;
  /// Has the branch's gradient taken from that of the sum, see BranchGradient.
  void leave_factor(ops::MixTerm<T>& branch, const Activations<T>& a) const;
  /// l1 of a layer, and p0 l1, of which the attention's branch is a multiple.
  ops::LearnedScalar<T> projection_factor(int layer) const;
  std::array<ops::LearnedScalar<T>, 2> attention_factors(int layer) const;
  /// Coefficient of x0 (index 0) or of the bigram embeddings (1).
  ops::MixCoefficient<T> injection(const Activations<T>& a, int layer, int index) const;

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Coefficients<T>& coefficients_;
};

}  // namespace nanorun
