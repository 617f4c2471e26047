#pragma once
// Softcap and cross-entropy loss between the GEMMs of the CUDA head (see lm_head.hpp), with the gradient of the logits.

#include "kernels/device/limits.hpp"
#include "kernels/lm_head/lm_head.hpp"

namespace nanorun::kernels::cuda {

/// Logits before the softcap. V is a multiple of 8, at most max_vocabulary: a row of bf16 lies in a thread block's
/// shared memory.
struct Softcap {
  Mat<bf16> z;                   ///< [rows, V], replaced by the gradient
  Vec<const Token> targets;      ///< of these rows and of all behind them
  const LmHeadOptions& options;  ///< of which the softcap and the targets count here
};

/// loss [rows], that of each row.
void softcap_loss(Stream stream, float* loss, const Softcap& in);

/// The same, and z becomes scale times the gradient of the loss by z.
void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale);

/// The same in e5m2, saturating. Returns the gradient [rows, V], which takes the first half of each row of z.
Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, const Softcap& in, double scale);

}  // namespace nanorun::kernels::cuda
