#pragma once
// From the QKV projection to what attention reads: QK norm (RMS norm of q and k over each head), rotary position
// embedding (RoPE, Su et al. 2021, arXiv:2104.09864), and the value residual (Zhou et al. 2024,
// arXiv:2410.17897), in which values take up a second source u.
//   q'[t,h] = R_t norm(q[t,h]),  k'[t,h] = R_t norm(k[t,h]),  v'[t] = l0 * v[t] + l1 * u[t]
//   R_t on the pair (x[j], x[j+D/2]):  y[j] = x[j] c + x[j+D/2] s,  y[j+D/2] = -x[j] s + x[j+D/2] c
//   with c = cos[t,j], s = sin[t,j], 0 <= j < D/2.
// Shapes: qkv [T, 3 H D] (columns: all of q, then k, then v; head-major); qk = [q' k'] [T, 2 H D]; v', v, u [T, H D];
// cos, sin [T, D/2]; rstd [T, 2 H] (q heads, then k heads), the factors 1 / sqrt(mean square + eps) of the norms.
// Without norm (model.qk_norm = false), q' = R_t q and k' = R_t k, and rstd is neither written nor read; heads have
// neither dead dims nor a key offset then.
//
// Q and K may be narrower than the heads, with L < D/2 live pairs (model.qk_dims): only the dims j and j + D/2 with j <
// L take part, and the mean of the norm is that of these 2 L. The others are dead: whatever q and k hold there, q' and
// k' are 0, so that attention on all D dims is that on the live ones; their gradient is 0, whatever d_q and d_k hold
// there.
//
// With a key offset, keys take their still dims, j and j + D/2 with S <= j < D/2, from the token before. qk then has T
// + 1 rows: row t + 1 holds the still dims of k'[t]; row 0 also holds the still dims of k'[0]. Attention reads the
// first T rows.
//
// The forward direction is part of the projection, see attention_projection.hpp.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// v' = l0 v + l1 u, where u is a table of value embeddings, or the values of the first block. Without `lambda` v' = v.
template <class T>
struct ValueResidual {
  /// (l0, l1) = (lambda[0], lambda[1]), or (1 - lambda[0], lambda[0]) with `interpolate`, or (lambda[0], 1) with
  /// `unit_source`.
  const acc_t<T>* lambda = nullptr;  ///< null only with `in_place`
  bool interpolate = false;
  /// u[t] = source[index[t]], or source[t] where index is null. With a null source v' = l0 * v. The gradient of u is
  /// per position: it is not summed by index.
  Mat<const T> source{};
  const Token* index = nullptr;
  bool unit_source = false;
  bool in_place = false;  ///< v' takes the place of v in qkv; only without a source

  struct Factors {
    acc_t<T> l0, l1;
  };
  constexpr Factors factors() const {
    if (!lambda) return {1, 0};
    if (interpolate) return {1 - lambda[0], lambda[0]};
    if (unit_source) return {lambda[0], 1};
    return {lambda[0], lambda[1]};
  }
  /// The gradient of l0, from the sum of <d v', v>. With `in_place` the backward pass reads v' = l0 v in place of v.
  template <class A>
  constexpr A gradient_of_l0(A sum) const {
    if (!in_place) return sum;
    const A l0 = factors().l0;
    return l0 == 0 ? 0 : sum / l0;
  }
  /// Row of the source that position t reads.
  constexpr int source_row(int t) const { return index ? index[t] : t; }
};

template <class T>
struct ValueResidualGradients {
  acc_t<T>* d_lambda = nullptr;  ///< same size as lambda, +=; null without lambda
  // Gradient of u [T, H D], +=, in at most one of two precisions; null where not wanted.
  Mat<acc_t<T>> d_source;
  Mat<T> d_rows;
};

template <class T>
struct Rotary {
  int heads = 0;
  Mat<const acc_t<T>> cos;
  Mat<const acc_t<T>> sin;
  /// Head h of token t stands at row 2 t + h mod 2 of cos and sin, which are [2 T, D/2], instead of row t.
  bool paired = false;
  bool key_offset = false;  ///< D is a multiple of 4
  int live_pairs = 0;       ///< L; 0: D/2
  int still_from = 0;       ///< S; 0: D/4
  bool norms = true;        ///< q and k are normed

  /// L and S, with D/2.
  constexpr int live(int half) const { return live_pairs > 0 ? live_pairs : half; }
  constexpr int first_still(int half) const { return still_from > 0 ? still_from : half / 2; }
  /// Row of cos and sin. Heads of keys may be numbered from 0 or from H: H is even where `paired`.
  constexpr int row(int t, int head) const { return paired ? 2 * t + head % 2 : t; }
};

NANORUN_DECLARE_OPS({
  /// cos[t,j] = cos(frequency[j] t), and sin likewise, computed in double. frequency [D/2], in radians per position,
  /// lies in the tensors' memory.
  /// CUDA: A = float. The last place may differ from the portable implementation's.
  template <class A>
  void rotary_table(Stream stream, Mat<A> cos, Mat<A> sin, Vec<const double> frequency);

  /// d_qkv = gradient of qkv. d_q, d_k and d_v [T, H D] are the gradients of what attention reads; d_v_extra [T, H D]
  /// is added to d_v unless null. `qk` and `rstd` are results of the forward pass; v is the value part of its qkv,
  /// which holds v' with `in_place`. With `in_place` and l0 = 0 the gradient of l0 is 0. `d_k` may be the middle H D
  /// columns of `d_qkv` unless keys are offset, and `d_v` the last. With a null d_v, and then no d_v_extra, the last
  /// columns of d_qkv and the gradients of the residual stay as they are. With `unit_source` the source is not read.
  /// CUDA: T = bf16; rows are whole 16-byte vectors; D is a power of two from 16 to 512, with a key offset from 32; L
  /// and with a key offset S are multiples of 8; else std::invalid_argument. d_q lies in panels, as attention_backward
  /// leaves it. All sums have a fixed order. The stream needs create_sums().
  template <class T>
  void attention_input_backward(Stream stream, Mat<T> d_qkv, const ValueResidualGradients<T>& d_residual,
                                Mat<const T> qk, Mat<const acc_t<T>> rstd, Mat<const T> v, Mat<const acc_t<T>> d_q,
                                Mat<const T> d_k, Mat<const T> d_v, Mat<const T> d_v_extra, const Rotary<T>& rotary,
                                const ValueResidual<T>& residual);
})

}  // namespace nanorun::kernels
