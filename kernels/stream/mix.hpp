#pragma once
// Mix of streams: a sum whose coefficients are constants, learned scalars, numbers per token, or products of these;
// then, where wanted, its RMS norm.
//   c_k[t] = constant_k f(s_k,0) f(s_k,1) per_token_k[t],   f(s) = s or sigmoid(s)
//   out[t] = sum_k c_k[t] x_k[t],   n = rms_norm(out)
// where x_k is the source of term k, or source_k[t] / rstd_k[t] where the source is the RMS norm of x_k.
// Shapes: out, n, sources and x [T, d]; rstd [T]; learned scalars [1]; per_token [T].
//
// Backward, with g the gradient of out and dot_k[t] = <g[t], x_k[t]>:
//   gradient of x_k[t] += c_k[t] g[t]
//   gradient of per_token_k[t] += (c_k[t] / per_token_k[t]) dot_k[t]
//   gradient of s += sum_t f'(s) (c_k[t] / f(s)) dot_k[t], for each s among the factors of c_k

#include <array>
#include <cmath>
#include <span>
#include <stdexcept>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"
#include "kernels/stream/norm.hpp"

namespace nanorun::kernels {

/// Most terms of one mix. Ops throw std::invalid_argument for more terms, and for none.
inline constexpr int max_mix_terms = 6;

/// A factor f(s) of a coefficient. Without a value the factor is 1. Device code may call the functions.
template <class T>
struct LearnedScalar {
  const acc_t<T>* value = nullptr;
  acc_t<T>* gradient = nullptr;  ///< +=; null: not wanted
  bool sigmoid = false;          ///< f(s) = sigmoid(s), else s

  /// f(s)
  constexpr acc_t<T> factor() const {
    if (!value) return 1;
    return sigmoid ? 1 / (1 + std::exp(-*value)) : *value;
  }
  /// f'(s)
  constexpr acc_t<T> slope() const { return sigmoid ? factor() * (1 - factor()) : 1; }
};

/// A factor of a coefficient for each token: element t lies `stride` elements behind element t - 1. Without a value it
/// is 1.
template <class T>
struct PerToken {
  const acc_t<T>* value = nullptr;
  acc_t<T>* gradient = nullptr;  ///< +=; null: not wanted
  int stride = 1;

  constexpr acc_t<T> factor(int t) const { return value ? value[at(t)] : 1; }
  constexpr std::ptrdiff_t at(int t) const { return static_cast<std::ptrdiff_t>(t) * stride; }
};

/// The forward pass reads the source, rstd and the coefficient, and no gradient.
template <class T>
struct MixTerm {
  Mat<const T> source;
  const acc_t<T>* rstd = nullptr;  ///< x = source / rstd; null: x is the source itself
  Mat<T> d_source;                 ///< += c g; null: not wanted. It may be MixBackward::d_out, see there
  bool overwrites = false;         ///< d_source = c g, in the place of +=
  /// mix_backward() does not read the source, so it need not be kept: dot_k follows from the norm and the other terms,
  ///   c_k dot_k = <g, n / rstd> - sum over the others of c dot.
  /// The mix needs a norm, and at most one term is implied, one without per_token; else std::invalid_argument. Where
  /// c_k = 0, the gradients of its scalars stay as they are.
  bool implied = false;
  bool shared = false;             ///< mix_backward() skips the term; shared_streams_backward() computes its gradients
  acc_t<T>* factor_out = nullptr;  ///< = common_factor(), for a reader that multiplies g itself, without d_source
  double constant = 1;
  std::array<LearnedScalar<T>, 2> scalars;
  PerToken<T> per_token;

  /// x = source / divisor(t)
  constexpr acc_t<T> divisor(int t) const { return rstd ? rstd[t] : 1; }
  /// c_k[t] = common_factor() * per_token.factor(t)
  constexpr acc_t<T> common_factor() const {
    return static_cast<acc_t<T>>(constant) * scalars[0].factor() * scalars[1].factor();
  }
  constexpr bool wants_scalars() const { return scalars[0].gradient || scalars[1].gradient; }
  /// Whether a gradient needs dot_k.
  constexpr bool wants_dot() const { return wants_scalars() || per_token.gradient; }
};

/// A gradient as the product of f(factor) and a matrix.
template <class T>
struct ScaledGradient {
  Mat<const T> matrix;
  LearnedScalar<T> factor;
};

/// What mix_backward() reads and writes beside the terms. The gradient of out joins what comes directly and what comes
/// through the norm:
///   g = d_in + rstd (d_n - n mean_j(d_n n))
template <class T>
struct MixBackward {
  /// Read as d_in, unless scaled_d_in has it or norm.is_only_path.
  /// Written: where it is the d_source of terms, the gradient of their source, = sum of c_k g over these terms +
  /// d_elsewhere. Else g, or undefined where `g` is wanted. It is the only matrix that several terms may have as
  /// d_source.
  Mat<T> d_out;
  /// Gradient of that source from outside the mix; null: none. Read only where d_out is the d_source of a term.
  Mat<const T> d_elsewhere{};
  NormGradient<T> norm{};           ///< norm.n null: the mix has no norm
  ScaledGradient<T> scaled_d_in{};  ///< d_in, read in the place of d_out; null: d_out is read
  Mat<T> g{};                       ///< = g; may be norm.n. Null: not wanted
};

/// Coefficient c[t] = f(s) per_token[t] of a stream in a mix.
template <class T>
struct MixCoefficient {
  bool present = false;  ///< whether the mix has the stream
  LearnedScalar<T> scalar;
  PerToken<T> per_token;

  constexpr acc_t<T> factor(int t) const { return present ? scalar.factor() * per_token.factor(t) : 0; }
};

/// A stream that several mixes read, and its gradient.
template <class T>
struct SharedStream {
  Mat<const T> x;
  Mat<T> d;
  bool accumulates = false;  ///< d +=, else d =
};

/// A mix that reads shared streams.
template <class T>
struct SharingMix {
  Mat<const T> g;                                ///< gradient of the mix's out
  std::array<MixCoefficient<T>, 2> coefficient;  ///< coefficients of the two shared streams
  MixTerm<T> implied;  ///< the implied term of the mix, if it has one; its source and per_token are not read
};

/// For an implied term (MixTerm::implied) the gradients of its scalars follow from sum_t c[t] dot[t]. Corrects them for
/// a change of this sum by `change`.
template <class T, class Sum>
constexpr void add_to_implied(const MixTerm<T>& term, Sum change) {
  const acc_t<T> c = term.common_factor();
  for (int i = 0; i < 2; ++i) {
    const LearnedScalar<T>& s = term.scalars[i];
    const Sum rest = static_cast<acc_t<T>>(term.constant) * term.scalars[1 - i].factor();
    if (s.gradient && c != 0) *s.gradient += static_cast<acc_t<T>>(rest * s.slope() * (change / c));
  }
}

/// The terms that mix_backward() works on: all but the shared ones.
template <class T>
struct OwnTerms {
  std::array<MixTerm<T>, max_mix_terms> term;
  int count = 0;

  /// Throws std::invalid_argument unless there are from 1 to max_mix_terms terms.
  explicit OwnTerms(std::span<const MixTerm<T>> terms) {
    if (terms.empty() || terms.size() > max_mix_terms) throw std::invalid_argument("mix_backward: 1 to 6 terms");
    for (const MixTerm<T>& t : terms) {
      if (!t.shared) term[count++] = t;
    }
  }
  std::span<const MixTerm<T>> span() const { return {term.data(), static_cast<std::size_t>(count)}; }
};

/// Index of the implied term of a backward pass, -1 without one. Throws std::invalid_argument where mix_backward() does
/// not take it.
template <class T>
int implied_term(std::span<const MixTerm<T>> terms, const NormGradient<T>& norm) {
  int implied = -1;
  for (std::size_t k = 0; k < terms.size(); ++k) {
    if (!terms[k].implied) continue;
    if (implied >= 0 || !norm.n || terms[k].per_token.value) {
      throw std::invalid_argument("mix_backward: an implied term needs the norm, learned scalars, and be the only one");
    }
    implied = static_cast<int>(k);
  }
  return implied;
}

NANORUN_DECLARE_OPS({
  /// `out` may be one of the sources.
  /// CUDA: T = bf16; rows are whole 16-byte vectors, d <= 4096; else std::invalid_argument.
  template <class T>
  void mix_forward(Stream stream, Mat<T> out, std::span<const MixTerm<T>> terms);

  /// out as mix_forward(), and n = rms_norm(out). Null `out`: n alone is wanted. Where `maximum` is not null, *maximum
  /// = max(*maximum, |n|) over all elements; NaN does not count. CUDA: demands what mix_forward() does. The norm reads
  /// the sums before they are rounded to out. *maximum is taken of the rounded n.
  template <class T>
  void mix_norm_forward(Stream stream, Mat<T> out, Mat<T> n, Vec<acc_t<T>> rstd, std::span<const MixTerm<T>> terms,
                        double eps, acc_t<T>* maximum = nullptr);

  /// Gradients of all terms but the shared ones, by the formulas above.
  /// CUDA: demands what mix_forward() does, and a stream with create_sums(). All sums have a fixed order.
  template <class T>
  void mix_backward(Stream stream, const MixBackward<T>& d, std::span<const MixTerm<T>> terms);

  /// Gradients of the shared terms of `mixes`, which mix_backward() skips. Stream i is x_i, with coefficient c_m,i in
  /// mix m; the second stream may be null. With dot_m,i[t] = <g_m[t], x_i[t]>:
  ///   gradient of x_i[t] = or += sum_m c_m,i[t] g_m[t]; gradients of the factors of c_m,i as above
  ///   implied term of mix m: mix_backward() took its c dot too large by sum_i c_m,i dot_m,i, which is corrected here
  /// No two coefficients have the same per_token gradient.
  /// CUDA: demands what mix_backward() does. The gradients of the streams are rounded to bf16 after every 16 mixes.
  template <class T>
  void shared_streams_backward(Stream stream, const std::array<SharedStream<T>, 2>& streams,
                               std::span<const SharingMix<T>> mixes);
})

}  // namespace nanorun::kernels
