#include "kernels/stream/mix.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "kernels/device/magnitude.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

namespace {

/// The terms of a mix by value, as loops on devices take them.
template <class T, int K>
struct Terms {
  MixTerm<T> term[K];
};

/// Calls body(Terms<T, K>()) with the terms.
template <int K = 1, class T, class Body>
void with_terms(std::span<const MixTerm<T>> terms, const Body& body) {
  if (terms.size() == K) {
    Terms<T, K> fixed;
    std::copy(terms.begin(), terms.end(), fixed.term);
    body(fixed);
  } else if constexpr (K < max_mix_terms) {
    with_terms<K + 1>(terms, body);
  } else {
    throw std::invalid_argument("mix: from 1 to 6 terms");
  }
}
static_assert(max_mix_terms == 6);

/// sum_k c[k] from[k][j]. A loop over k would not always be unrolled, and that over j not be vectorised then.
template <class T, std::size_t... k>
KOKKOS_INLINE_FUNCTION T sum_of_terms(const T* const* from, const T* c, int j, std::index_sequence<k...>) {
  return (... + (c[k] * from[k][j]));
}

/// Writes row t of out; returns sum_j out[t,j]².
template <class T, int K>
KOKKOS_FUNCTION T mix_row(int t, Mat<T> out, const Terms<T, K>& terms) {
  const T* from[K];
  T c[K];
  for (int k = 0; k < K; ++k) {
    from[k] = terms.term[k].source.row(t);
    c[k] = terms.term[k].common_factor() * terms.term[k].per_token.factor(t) / terms.term[k].divisor(t);
  }
  T* to = out.row(t);
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int j = 0; j < out.cols; ++j) {
    const T sum = sum_of_terms(from, c, j, std::make_index_sequence<K>());
    to[j] = sum;
    squares += sum * sum;
  }
  return squares;
}

template <class T, int K>
void mix_rows(Mat<T> out, const Terms<T, K>& terms) {
  for_rows("mix_forward", out.rows, [=] KOKKOS_FUNCTION(int t) { mix_row(t, out, terms); });
}

template <class T, int K>
void mix_norm_rows(Mat<T> out, Mat<T> n, Vec<acc_t<T>> rstd, const Terms<T, K>& terms, double eps) {
  for_rows("mix_norm_forward", n.rows, [=] KOKKOS_FUNCTION(int t) {
    const Mat<T>& sums = out ? out : n;
    const T r = 1 / std::sqrt(mix_row(t, sums, terms) / n.cols + static_cast<T>(eps));
    const T* from = sums.row(t);
    T* to = n.row(t);
    rstd[t] = r;
#pragma omp simd
    for (int j = 0; j < n.cols; ++j) to[j] = from[j] * r;
  });
}

/// out[t,j] = c x[t,j]
template <class T>
KOKKOS_FUNCTION void copy_row(int t, Mat<T> out, Mat<const T> x, T c) {
  T* to = out.row(t);
  const T* from = x.row(t);
#pragma omp simd
  for (int j = 0; j < out.cols; ++j) to[j] = c * from[j];
}

/// out[t,j] += c x[t,j]
template <class T>
KOKKOS_FUNCTION void add_row(int t, Mat<T> out, Mat<const T> x, T c) {
  T* to = out.row(t);
  const T* from = x.row(t);
#pragma omp simd
  for (int j = 0; j < out.cols; ++j) to[j] += c * from[j];
}

template <class T>
KOKKOS_FUNCTION void clear_row(int t, Mat<T> out) {
  T* to = out.row(t);
  for (int j = 0; j < out.cols; ++j) to[j] = 0;
}

/// d[j] += rstd (d_n[t,j] - n[t,j] mean(d_n n)), or = where that is all
template <class T>
KOKKOS_FUNCTION void add_norm_gradient(int t, T* d, const NormGradient<T>& norm) {
  const int cols = norm.n.cols;
  const T* n = norm.n.row(t);
  const T* d_n = norm.d_n.row(t);
  const T mean = dot(d_n, n, cols) / cols, r = norm.rstd[t];
#pragma omp simd
  for (int j = 0; j < cols; ++j) d[j] = (norm.is_only_path ? 0 : d[j]) + r * (d_n[j] - n[j] * mean);
}

/// d_source of a term in row t, where it is not d_out.
template <class T>
KOKKOS_FUNCTION void send_row(int t, const MixTerm<T>& term, T c, const T* g) {
  const int cols = term.d_source.cols;
  T* to = term.d_source.row(t);
  if (term.overwrites) {
#pragma omp simd
    for (int j = 0; j < cols; ++j) to[j] = c * g[j];
  } else {
#pragma omp simd
    for (int j = 0; j < cols; ++j) to[j] += c * g[j];
  }
}

/// d_out in row t: in: g; out: c g + d_elsewhere.
template <class T>
KOKKOS_FUNCTION void replace_row(int t, Mat<T> d_out, Mat<const T> d_elsewhere, T c) {
  T* to = d_out.row(t);
  if (d_elsewhere) {
    const T* joins = d_elsewhere.row(t);
#pragma omp simd
    for (int j = 0; j < d_out.cols; ++j) to[j] = c * to[j] + joins[j];
  } else {
#pragma omp simd
    for (int j = 0; j < d_out.cols; ++j) to[j] *= c;
  }
}

/// dot_k of the implied term in a row: `rest` is the sum over the others of c dot.
template <class T>
KOKKOS_FUNCTION T implied_dot(int t, const MixTerm<T>& term, T rest, const T* g, const NormGradient<T>& norm) {
  const T c = term.common_factor();
  return c == 0 ? 0 : (dot<T>(g, norm.n.row(t), norm.n.cols) / norm.rstd[t] - rest) / c;
}

/// One row; returns per_token_k[t] dot_k[t] where the scalars need it. implied: that term's index, -1 without one.
template <class T, int K>
KOKKOS_FUNCTION Sums<K> mix_backward_row(int t, const MixBackward<T>& d, const Terms<T, K>& terms, int implied) {
  T* g = d.d_out.row(t);
  if (d.scaled_d_in.matrix) copy_row(t, d.d_out, d.scaled_d_in.matrix, d.scaled_d_in.factor.factor());
  if (d.norm.n) add_norm_gradient(t, g, d.norm);
  Sums<K> sums;
  bool replaces = false;
  T to_out = 0, rest = 0;
  for (int k = 0; k < K; ++k) {
    const MixTerm<T>& term = terms.term[k];
    const T common = term.common_factor(), by_token = term.per_token.factor(t);
    if (k != implied && (term.wants_dot() || implied >= 0)) {
      const T product = dot<T>(g, term.source.row(t), d.d_out.cols) / term.divisor(t);
      rest += common * by_token * product;
      if (term.per_token.gradient) term.per_token.gradient[term.per_token.at(t)] += common * product;
      sums.values[k] = by_token * product;
    }
    if (term.d_source.data == d.d_out.data) {
      replaces = true;
      to_out += common * by_token;
    } else if (term.d_source) {
      send_row(t, term, common * by_token, g);
    }
  }
  if (implied >= 0) sums.values[implied] = implied_dot(t, terms.term[implied], rest, g, d.norm);
  if (d.g) copy_row<T>(t, d.g, d.d_out, 1);
  if (replaces) replace_row(t, d.d_out, d.d_elsewhere, to_out);
  return sums;
}

template <class T, int K>
void mix_backward_rows(const MixBackward<T>& d, const Terms<T, K>& terms, int implied) {
  const Sums<K> sums = sum_rows<K>("mix_backward", d.d_out.rows,
                                   [=] KOKKOS_FUNCTION(int t) { return mix_backward_row(t, d, terms, implied); });
  for_rows("mix_scalars", 1, [=] KOKKOS_FUNCTION(int) {
    for (int k = 0; k < K; ++k) {
      const MixTerm<T>& term = terms.term[k];
      if (term.factor_out) *term.factor_out = term.common_factor();
      for (int i = 0; i < 2; ++i) {
        const LearnedScalar<T>& s = term.scalars[i];
        const double rest = term.constant * term.scalars[1 - i].factor();
        if (s.gradient) *s.gradient += static_cast<T>(rest * s.slope() * sums.values[k]);
      }
    }
  });
}

/// Row t of a mix's shared streams. Returns per_token_i dot_i of both, and the sum of c_i dot_i.
template <class T>
KOKKOS_FUNCTION Sums<3> share_row(int t, const std::array<SharedStream<T>, 2>& streams, const SharingMix<T>& mix) {
  Sums<3> sums;
  for (int i = 0; i < 2; ++i) {
    const MixCoefficient<T>& c = mix.coefficient[i];
    if (!streams[i].d || !c.present) continue;
    add_row(t, streams[i].d, mix.g, c.factor(t));
    const T product = dot<T>(mix.g.row(t), streams[i].x.row(t), mix.g.cols);
    if (c.per_token.gradient) c.per_token.gradient[c.per_token.at(t)] += c.scalar.factor() * product;
    sums.values[i] = c.per_token.factor(t) * product;
    sums.values[2] += c.factor(t) * product;
  }
  return sums;
}

/// Adds to the gradients of the scalars, from the sums over the rows.
template <class T>
KOKKOS_FUNCTION void add_to_scalars(const SharingMix<T>& mix, const Sums<3>& sums) {
  for (int i = 0; i < 2; ++i) {
    const LearnedScalar<T>& s = mix.coefficient[i].scalar;
    if (s.gradient) *s.gradient += static_cast<T>(s.slope() * sums.values[i]);
  }
  add_to_implied(mix.implied, -sums.values[2]);
}

}  // namespace

template <class T>
void mix_forward(Stream, Mat<T> out, std::span<const MixTerm<T>> terms) {
  with_terms(terms, [&](const auto& fixed) { mix_rows(out, fixed); });
}

template <class T>
void mix_norm_forward(Stream stream, Mat<T> out, Mat<T> n, Vec<acc_t<T>> rstd, std::span<const MixTerm<T>> terms,
                      double eps, acc_t<T>* maximum) {
  with_terms(terms, [&](const auto& fixed) { mix_norm_rows(out, n, rstd, fixed, eps); });
  const Magnitude<T> magnitude{maximum, n};
  if (maximum) max_magnitude<T>(stream, {&magnitude, 1});
}

template <class T>
void mix_backward(Stream, const MixBackward<T>& d, std::span<const MixTerm<T>> terms) {
  const OwnTerms<T> own(terms);
  const int implied = implied_term(own.span(), d.norm);
  with_terms(own.span(), [&](const auto& fixed) { mix_backward_rows(d, fixed, implied); });
}

template <class T>
void shared_streams_backward(Stream, const std::array<SharedStream<T>, 2>& streams,
                             std::span<const SharingMix<T>> mixes) {
  for (const SharedStream<T>& stream : streams) {
    if (stream.d && !stream.accumulates) {
      for_rows("shared_streams", stream.d.rows, [=] KOKKOS_FUNCTION(int t) { clear_row(t, stream.d); });
    }
  }
  for (const SharingMix<T>& mix : mixes) {
    const Sums<3> sums =
        sum_rows<3>("shared_streams", mix.g.rows, [=] KOKKOS_FUNCTION(int t) { return share_row(t, streams, mix); });
    for_rows("shared_scalars", 1, [=] KOKKOS_FUNCTION(int) { add_to_scalars(mix, sums); });
  }
}

#define NANORUN_OPS(T)                                                                                     \
  template void mix_forward(Stream, Mat<T>, std::span<const MixTerm<T>>);                                  \
  template void mix_norm_forward(Stream, Mat<T>, Mat<T>, Vec<T>, std::span<const MixTerm<T>>, double, T*); \
  template void mix_backward(Stream, const MixBackward<T>&, std::span<const MixTerm<T>>);                  \
  template void shared_streams_backward(Stream, const std::array<SharedStream<T>, 2>&, std::span<const SharingMix<T>>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable
