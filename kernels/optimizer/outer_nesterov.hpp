#pragma once
// The outer step of MuLoCo with one worker (Thérien et al. 2025, arXiv:2505.23725, algorithm 1 with K = 1): every few
// updates of an inner optimizer, their sum counts as a gradient of a slower copy of the weights, on which SGD with
// Nesterov momentum takes a step. Training goes on from there. It is also the Sparse Nesterov Outer Optimizer (Snoo) of
// the NanoGPT speedrun's record 12 of its second track.
//   d = w_outer - w,  u = momentum u + d,  w_outer = w_outer - lr (d + momentum u),  w = w_outer
// Shapes: w, w_outer, u [n]. w_outer and u have the accumulators' type.

#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// w is rounded to T, ties to even; w_outer is not.
  /// CUDA: T = bf16 or float.
  template <class T>
  void outer_nesterov(Stream stream, Vec<T> w, Vec<std::type_identity_t<acc_t<T>>> w_outer,
                      Vec<std::type_identity_t<acc_t<T>>> u, double lr, double momentum);
})

}  // namespace nanorun::kernels
