#pragma once
// Block-sparse softmax attention with online softmax over the allowed key blocks of each query block, after
// FlashAttention-2 (Dao 2023, arXiv:2307.08691); no [T, T] buffer exists.
//   s[q,k] = scale * <q, k>,  p = softmax over the allowed k,  y[q] = sum_k p[q,k] v[k],  lse[q] = log sum exp s[q,k]
// Shapes: q, k, v, y and their gradients [T, H D] (head-major columns, any row stride); lse [H, T].

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// Tokens in a block of the mask; T is a multiple of it.
inline constexpr int attention_block = 128;

/// Causal mask within documents and a sliding window: query q sees exactly the keys first_key[q] <= k <= q. Documents
/// are contiguous and windows move with the query, so first_key never decreases; hence the key blocks of a query block,
/// and the query blocks of a key block, are intervals. All pointers point to the tensors' memory.
struct AttentionMask {
  int length = 0;                           ///< T
  const std::int32_t* first_key = nullptr;  ///< [T]
  /// [T / 128], for query block b: key blocks [key_begin[b], b] have an allowed pair. In blocks [key_full[b], b)
  /// every pair is allowed; key_full[b] <= b.
  const std::int32_t* key_begin = nullptr;
  const std::int32_t* key_full = nullptr;
  /// [T / 128], for key block b: query blocks [b, query_end[b]) have an allowed pair. In blocks (b, query_full[b])
  /// every pair is allowed; query_full[b] >= b + 1.
  const std::int32_t* query_end = nullptr;
  const std::int32_t* query_full = nullptr;
};

template <class T>
struct AttentionInputs {
  Mat<const T> q, k, v;
  int heads = 0;
  acc_t<T> scale = 0;
  /// Heads h and h + H/2 attend as one: row 2 t + s of pair p, p < H/2, is head p + s H/2 of token t. The mask has 2 T
  /// rows then, and lse [H/2, 2 T].
  bool paired = false;
};

/// v = factor u, where a backward pass is to find the gradient of u: factor d_v.
template <class T>
struct AttentionValueFactor {
  const acc_t<T>* factor = nullptr;  ///< null: 1
  acc_t<T>* gradient = nullptr;      ///< of the factor, +=; null: not wanted

  /// What the gradient of the factor grows by, from sum <d_v, v>; 0 where the factor is 0.
  template <class A>
  constexpr A gradient_from(A sum) const {
    return *factor == 0 ? 0 : sum / *factor;
  }
};

namespace cuda {
/// Columns of a panel of d_q, which lies in panels: [H D / d_q_panel, T, d_q_panel].
inline constexpr int d_q_panel = 8;
}  // namespace cuda

// CUDA: T = bf16, D one of attention_head_dims (cuda_limits.hpp), scale > 0; rows and first_key are aligned to 16
// bytes; else std::invalid_argument. The stream needs create_sums(). All sums have a fixed order.
NANORUN_DECLARE_OPS({
  /// Bytes of workspace that either direction needs.
  template <class T>
  std::size_t attention_workspace(int length, int heads, int head_dim);

  template <class T>
  void attention_forward(Stream stream, Mat<T> y, Mat<acc_t<T>> lse, const AttentionInputs<T>& in,
                         const AttentionMask& mask, Workspace workspace);

  /// d_q, d_k, d_v = gradients; y and lse are the forward's. d_q, a sum over key blocks, is left unrounded. d_v is that
  /// of the values without their factor, whose own gradient follows from sum <d_v, v> = sum <d_y, y>.
  /// CUDA: d_q lies in panels, see d_q_panel. H T is at most max_attention_rows (cuda_limits.hpp), else
  /// std::invalid_argument.
  template <class T>
  void attention_backward(Stream stream, Mat<acc_t<T>> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y,
                          Mat<const acc_t<T>> lse, Mat<const T> d_y, const AttentionInputs<T>& in,
                          const AttentionMask& mask, Workspace workspace, const AttentionValueFactor<T>& values = {});
})

}  // namespace nanorun::kernels
