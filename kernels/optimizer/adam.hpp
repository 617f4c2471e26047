#pragma once
// Adam with bias correction (Kingma and Ba 2015, arXiv:1412.6980) and decoupled weight decay (AdamW, Loshchilov and
// Hutter 2019, arXiv:1711.05101), which is plain, or cautious (Chen et al. 2025, arXiv:2510.12402): then it acts only
// where it and the update have the same sign.
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g²
//   u = lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps),  t = 1 for the first update
//   w -= u + decay w,  or with cautious decay w -= u + decay w [u w > 0]
// With epsilon_hat, u = lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps).
// Shapes: w, copy, m, v, g [n]. w are the master weights; g enters as gradient_scale g. New w, m and v may be rounded
// to the nearest bf16, ties to even, when they are stored; u is formed from m and v before that.

#include <cmath>
#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

struct AdamOptions {
  double lr = 0;
  double beta1 = 0.8;
  double beta2 = 0.95;
  double eps = 1e-10;
  long t = 1;
  double gradient_scale = 1;
  double decay = 0;
  bool cautious = true;  ///< the decay is cautious, not plain
  bool epsilon_hat = false;
  bool round_weights = false, round_moments = false;  ///< to bf16
  bool clears_gradient = false;                       ///< g = 0 afterwards
};

/// What changes from one update to the next: u = lr m / (root_factor sqrt(v) + eps). lr and root_factor hold the bias
/// corrections.
template <class A>
struct AdamRates {
  A lr, root_factor, decay;
};
/// The rates of update options.t.
template <class A>
AdamRates<A> adam_rates(const AdamOptions& options) {
  const auto t = static_cast<double>(options.t);
  const double lr = options.lr / (1 - std::pow(options.beta1, t)), rest2 = 1 - std::pow(options.beta2, t);
  const double root = std::sqrt(rest2);
  if (options.epsilon_hat) return {static_cast<A>(lr * root), A(1), static_cast<A>(options.decay)};
  return {static_cast<A>(lr), static_cast<A>(1 / root), static_cast<A>(options.decay)};
}

/// What stays the same for all updates of a tensor. rest1 = 1 - beta1, rest2 = 1 - beta2.
template <class A>
struct AdamFactors {
  A beta1, rest1, beta2, rest2, eps, gradient_scale;
  bool cautious, round_weights, round_moments, clears_gradient;

  explicit AdamFactors(const AdamOptions& o)
      : beta1(static_cast<A>(o.beta1)),
        rest1(static_cast<A>(1 - o.beta1)),
        beta2(static_cast<A>(o.beta2)),
        rest2(static_cast<A>(1 - o.beta2)),
        eps(static_cast<A>(o.eps)),
        gradient_scale(static_cast<A>(o.gradient_scale)),
        cautious(o.cautious),
        round_weights(o.round_weights),
        round_moments(o.round_moments),
        clears_gradient(o.clears_gradient) {}
};

NANORUN_DECLARE_OPS({
  /// W, M, G: types of w, of the moments and of g. copy = w rounded to T, for the GEMMs that read it; where W is T,
  /// copy is w itself. squares [2] in the tensors' memory, in double: squares[0] += sum of (gradient_scale g)²,
  /// squares[1] += sum of the new w². A sum is not finite if any of its elements is not. CUDA: T = bf16 or float; W, M
  /// and G = float or T. Where they are bf16, options.round_weights and round_moments must say so. The sums have a
  /// fixed order. The stream needs create_sums().
  template <class T, class W = acc_t<T>, class M = acc_t<T>, class G = acc_t<T>>
  void adam_update(Stream stream, Vec<std::type_identity_t<W>> w, Vec<T> copy, Vec<std::type_identity_t<M>> m,
                   Vec<std::type_identity_t<M>> v, Vec<std::type_identity_t<G>> g, const AdamOptions& options,
                   double* squares);
})

}  // namespace nanorun::kernels
