#pragma once
// Mix of streams: a sum whose coefficients are constants, learned scalars, numbers per token, or products of these;
// then, where wanted, its RMS norm.
//   c_k[t] = constant_k f(s_k,0) f(s_k,1) per_token_k[t],   f(s) = s or sigmoid(s)
//   out[t] = sum_k c_k[t] x_k[t],   n = rms_norm(out)
// where x_k is the source of the term, or source_k[t] / rstd_k[t] where the source is the RMS norm of the stream meant.
// Shapes: out, n, sources and x [T, d]; rstd [T]; learned scalars [1]; per_token [T].

#include <array>
#include <cmath>
#include <span>
#include <stdexcept>

#include "kernels/device/types.hpp"
#include "kernels/stream/norm.hpp"

namespace nanorun::kernels {

/// Terms of one mix.
inline constexpr int max_mix_terms = 6;

namespace portable {

/// A factor of a coefficient. Without a value the factor is 1. Device code may call the functions.
template <class T>
struct LearnedScalar {
  const acc_t<T>* value = nullptr;
  acc_t<T>* gradient = nullptr;  ///< +=
  bool sigmoid = false;

  /// f(s)
  constexpr acc_t<T> factor() const {
    if (!value) return 1;
    return sigmoid ? 1 / (1 + std::exp(-*value)) : *value;
  }
  /// f'(s)
  constexpr acc_t<T> slope() const { return sigmoid ? factor() * (1 - factor()) : 1; }
};

/// A factor of a coefficient: element t stands `stride` elements behind element t - 1. Without a value it is 1.
template <class T>
struct PerToken {
  const acc_t<T>* value = nullptr;
  acc_t<T>* gradient = nullptr;  ///< +=
  int stride = 1;

  constexpr acc_t<T> factor(int t) const { return value ? value[at(t)] : 1; }
  constexpr std::ptrdiff_t at(int t) const { return static_cast<std::ptrdiff_t>(t) * stride; }
};

/// The forward pass reads no gradient. Null gradients are not wanted.
template <class T>
struct MixTerm {
  Mat<const T> source;
  const acc_t<T>* rstd = nullptr;  ///< null: x is the source itself
  Mat<T> d_source;                 ///< +=, or = where `overwrites`; see mix_backward() where it is d_out
  bool overwrites = false;
  bool implied = false;               ///< mix_backward() does not read the source, see there
  bool shared = false;                ///< mix_backward() passes the term over, see shared_streams_backward()
  acc_t<T>* leaves_factor = nullptr;  ///< = common_factor(), for who takes g for the gradient of the source but for it
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

/// How mix_backward() gets and leaves the gradient of a stream, beside d_out.
template <class T>
struct MixHandover {
  Mat<const T> from;        ///< what comes in, in the place of d_out; null: d_out
  LearnedScalar<T> factor;  ///< of what comes in
  Mat<T> g;                 ///< = g; may be norm.n. Null: not wanted
};

/// Coefficient c[t] = f(s) per_token[t] of a stream in a mix.
template <class T>
struct MixCoefficient {
  bool present = false;  ///< whether the mix has the stream
  LearnedScalar<T> scalar;
  PerToken<T> per_token;

  constexpr acc_t<T> factor(int t) const { return present ? scalar.factor() * per_token.factor(t) : 0; }
};

/// A stream that several mixes read, and its gradient: +=, or =.
template <class T>
struct SharedStream {
  Mat<const T> x;
  Mat<T> d;
  bool adds = false;
};

/// A mix that reads shared streams: the gradient g of its sum, and its coefficients of two such streams.
template <class T>
struct SharingMix {
  Mat<const T> g;
  std::array<MixCoefficient<T>, 2> of;
  MixTerm<T> implied;  ///< the mix's implied term, if it has one; without source and per_token
};

/// Adds to the gradients of an implied term's scalars what `by_sum` more in the sum of c dot over the tokens means.
template <class T, class Sum>
constexpr void add_to_implied(const MixTerm<T>& term, Sum by_sum) {
  const acc_t<T> c = term.common_factor();
  for (int i = 0; i < 2; ++i) {
    const LearnedScalar<T>& s = term.scalars[i];
    const Sum rest = static_cast<acc_t<T>>(term.constant) * term.scalars[1 - i].factor();
    if (s.gradient && c != 0) *s.gradient += static_cast<acc_t<T>>(rest * s.slope() * (by_sum / c));
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

// From 1 to max_mix_terms terms; else std::invalid_argument.

/// `out` may be one of the sources.
template <class T>
void mix_forward(Stream stream, Mat<T> out, std::span<const MixTerm<T>> terms);

/// The same, and n = rms_norm(out). Null `out`: n alone is wanted. Where `maximum` is not null, *maximum =
/// max(*maximum, |n|) over all elements; NaN does not count.
template <class T>
void mix_norm_forward(Stream stream, Mat<T> out, Mat<T> n, Vec<acc_t<T>> rstd, std::span<const MixTerm<T>> terms,
                      double eps, acc_t<T>* maximum = nullptr);

/// d_out: in: gradient of out, except through n; out: the sum of what the terms send to it that have it as their
/// d_source, and d_elsewhere, the gradient that the same stream has from elsewhere (null: none). Without such a term
/// d_out becomes g, or undefined where handover.g takes that, and d_elsewhere is not read. With g the gradient of out,
/// where norm.n is null d_in, else (without the first term where norm.alone), and d_in = f(handover.factor)
/// handover.from, or d_out
///   g = d_in + rstd (d_n - n mean_j(d_n n)),   dot_k[t] = <g[t], x_k[t]>:
///   d_source_k += c_k g,  per_token gradient[t] += (c_k / per_token_k)[t] dot_k[t],
///   scalar gradient += sum_t f'(s) (c_k / f(s))[t] dot_k[t]
/// Only d_out may be the d_source of several terms.
/// Of an implied term c_k dot_k = <g, n / rstd> - sum over the others of c dot: its source need not be kept. It needs
/// the norm, it is the only one, and it has no per_token; else std::invalid_argument. Where c_k = 0, its scalars get
/// nothing.
template <class T>
void mix_backward(Stream stream, Mat<T> d_out, Mat<const T> d_elsewhere, const NormGradient<T>& norm,
                  std::span<const MixTerm<T>> terms, const MixHandover<T>& handover = {});

/// What mix_backward() leaves out of the shared terms of `mixes`, of two streams i; the second may be null:
///   d_i[t] (+)= sum_m c_m,i[t] g_m[t], and with dot_m,i[t] = <g_m[t], x_i[t]> the gradients of c_m,i;
///   the scalars of m's implied term get what its dot lacks: - sum_t,i c_m,i[t] dot_m,i[t] in the place of c dot.
/// No two coefficients have the same per_token gradient.
template <class T>
void shared_streams_backward(Stream stream, const std::array<SharedStream<T>, 2>& streams,
                             std::span<const SharingMix<T>> mixes);

}  // namespace portable

namespace cuda {

using portable::LearnedScalar;
using portable::MixCoefficient;
using portable::MixHandover;
using portable::MixTerm;
using portable::PerToken;
using portable::SharedStream;
using portable::SharingMix;

/// T = bf16; rows are whole 16-byte vectors, d <= 4096; else std::invalid_argument.
template <class T>
void mix_forward(Stream stream, Mat<T> out, std::span<const MixTerm<T>> terms);

/// The norm reads the sums before they are rounded to out. `maximum` is that of the rounded n.
template <class T>
void mix_norm_forward(Stream stream, Mat<T> out, Mat<T> n, Vec<acc_t<T>> rstd, std::span<const MixTerm<T>> terms,
                      double eps, acc_t<T>* maximum = nullptr);

/// All sums have a fixed order. The stream needs create_sums().
template <class T>
void mix_backward(Stream stream, Mat<T> d_out, Mat<const T> d_elsewhere, const NormGradient<T>& norm,
                  std::span<const MixTerm<T>> terms, const MixHandover<T>& handover = {});

/// Sums as above. The gradients of the streams are rounded to bf16 after every 16 mixes.
template <class T>
void shared_streams_backward(Stream stream, const std::array<SharedStream<T>, 2>& streams,
                             std::span<const SharingMix<T>> mixes);

}  // namespace cuda
}  // namespace nanorun::kernels
