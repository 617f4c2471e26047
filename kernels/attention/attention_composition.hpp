#pragma once
// Dynamically composed heads (DC): over a local window, the heads' probabilities are summed with weights of the query's
// token, and the sum attends for every head once more.
//   p[h,t,s] = softmax over t - window < s <= t, s >= first_key[t], of scale <q[t,h], k[s,h]>
//   a[t,s] = sum_h w1'[t,h] p[h,t,s],   out[t,h] = y[t,h] + sum_s w2[t,h] a[t,s] v[s,h]
//   w1'[t] = w1[t] / sqrt(mean_h w1[t,h]² + 1e-6)
// Shapes: q, k, v, y, out [T, H D], head-major, any row stride; w1, w2 [T, H].

#include "kernels/attention/attention.hpp"
#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

template <class T>
struct AttentionComposition {
  AttentionInputs<T> in;  ///< not paired
  Mat<const acc_t<T>> w1, w2;
  int window = 112;                         ///< keys
  const std::int32_t* first_key = nullptr;  ///< [T], of the document alone or of any wider mask; never decreases
};

template <class T>
struct AttentionCompositionGradients {
  Mat<acc_t<T>> d_q;         ///< +=
  Mat<T> d_k, d_v;           ///< +=
  Mat<acc_t<T>> d_w1, d_w2;  ///< +=
};

// CUDA: T = bf16, D = wide_head_dim, scale > 0, at most max_composition_window keys (cuda_limits.hpp), a length
// that is a multiple of 64; rows of bf16 are aligned to 16 bytes; else std::invalid_argument. Operands of the matrix
// products are rounded to bf16, their sums are float. Each element of a gradient belongs to one warp, so that all
// results are reproducible bit for bit.
NANORUN_DECLARE_OPS({
  /// Bytes of workspace that either direction needs.
  template <class T>
  std::size_t attention_composition_workspace(int length, int heads, int window);

  /// `out` may be `y`.
  template <class T>
  void attention_composition_forward(Stream stream, Mat<T> out, Mat<const T> y, const AttentionComposition<T>& dc,
                                     Workspace workspace);

  /// The gradient of y is d_out itself.
  /// CUDA: d_q lies in panels, as attention_backward leaves it.
  template <class T>
  void attention_composition_backward(Stream stream, const AttentionCompositionGradients<T>& d, Mat<const T> d_out,
                                      const AttentionComposition<T>& dc, Workspace workspace);
})

}  // namespace nanorun::kernels
