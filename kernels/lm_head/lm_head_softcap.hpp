#pragma once
// Softcap and cross-entropy loss between the GEMMs of the LM head on CUDA (see lm_head.hpp), with the gradient of the
// logits.

#include "kernels/device/cuda_limits.hpp"
#include "kernels/lm_head/lm_head.hpp"

namespace nanorun::kernels::cuda {

/// A chunk of logits before the softcap, with their targets. V is a multiple of 8 and at most max_vocabulary: on
/// Hopper a row of bf16 lies in a thread block's shared memory; on other GPUs where it fits.
struct Softcap {
  Mat<bf16> z;                   ///< [rows, V]; the functions for gradients overwrite it
  Vec<const Token> targets;      ///< the tokens behind each row: of these rows and all later ones
  const LmHeadOptions& options;  ///< the softcap, the targets and the precision are read
};

}  // namespace nanorun::kernels::cuda

namespace nanorun::kernels {

NANORUN_DECLARE_TIERED({
  /// loss[t] = the loss of row t; loss [rows].
  void softcap_loss(Stream stream, float* loss, const Softcap& in);

  /// Losses as softcap_loss(), and z = scale times the gradient of the loss by z.
  void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale);

  /// Losses as softcap_loss(). Returns scale times the gradient of the loss by z, [rows, V], in e5m2, saturating. It
  /// lies in the first half of each row of z.
  Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, const Softcap& in, double scale);
})

}  // namespace nanorun::kernels
