#pragma once
// Softcap and cross-entropy loss between the GEMMs of the CUDA head (see head.hpp), with the gradient of the logits.

#include "kernels/head.hpp"

namespace nanorun::kernels::cuda {

/// Largest V: a row of bf16 lies in a thread block's shared memory.
constexpr int max_vocabulary = 113000;

/// Logits before the softcap. V is a multiple of 8, at most max_vocabulary; for softcap_gradient_fp8 V and the rows are
/// multiples of 16.
struct Softcap {
  Mat<bf16> z;                 ///< [rows, V], replaced by the gradient
  Vec<const Token> targets;    ///< of these rows and of all behind them
  const HeadOptions& options;  ///< of which the softcap and the targets count here
  int* counts;                 ///< [softcap_counts(rows)], zero before the first call on these rows
};
std::size_t softcap_counts(int rows);

/// loss [rows], that of each row.
void softcap_loss(Stream stream, float* loss, const Softcap& in);

/// The same, and z becomes scale times the gradient of the loss by z.
void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale);

/// The same in e5m2, saturating. Returns the gradient [rows, V], which takes the first half of each row of z. g_t
/// [V, rows], with rows aligned to 16 bytes, becomes its transpose.
/// `blocks` of the softcap_blocks(rows) thread blocks, 0 for all: the work may be split into several calls on the same
/// counts, in any order or at the same time.
Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, Mat<e5m2> g_t, const Softcap& in, double scale,
                               int blocks = 0);
int softcap_blocks(int rows);

}  // namespace nanorun::kernels::cuda
