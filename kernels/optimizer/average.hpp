#pragma once
// Exponential averages of weights over the last steps of a run, and the weights that they give in its end (Polyak and
// Juditsky 1992; as in pull request 349 of the NanoGPT speedrun).
//   average_weights:  E += rate (w - E), or E = w with a rate of 1, whatever E held before
//   blend_average:    w = (1 - blend) w + blend E
// Shapes: E, w [n]. E has the accumulators' type; sums are formed in it, and rounded to w's type, ties to even.

#include <cmath>
#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// One element of blend_average() before it is rounded: the same bits on hosts and devices, since nothing is left to
/// the compiler's choice of fused operations. share = blend and rest = 1 - blend, in T. Device code may call it.
template <class T>
constexpr T blended(T w, T average, T share, T rest) {
  return std::fma(rest, w, share * average);
}

NANORUN_DECLARE_OPS({
  /// CUDA: T = bf16 or float.
  template <class T>
  void average_weights(Stream stream, Vec<std::type_identity_t<acc_t<T>>> average, Vec<const T> w, double rate);
  /// CUDA: T = bf16 or float.
  template <class T>
  void blend_average(Stream stream, Vec<T> w, Vec<const std::type_identity_t<acc_t<T>>> average, double blend);
})

}  // namespace nanorun::kernels
