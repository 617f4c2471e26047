#pragma once
// Gates on attention heads: attention_gate_* makes a gate per token and head from the first columns of one or two
// streams, and attention_scale_* multiplies the heads by gates, of which neighbouring heads may share one.
//   gate[t,h] = factor sigmoid(<w[h], [x[t, 0..a-1]; u[t, 0..b-1]]>)
//   out[t,h] = s[t, g] x[t,h], or out[t,h] += s[t, g] x[t,h], with g = h G / H rounded down
// Shapes of attention_gate_*: gate [T, H]; w [H, a + b]; x and u [T, any].
// Shapes of attention_scale_*: x, out [T, H D], head-major; s [T, G], G divides H.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// Inputs of a gate: the first columns of one or two streams.
template <class T>
struct GateInputs {
  Mat<const T> x;  ///< [T, a], a column block
  Mat<const T> u;  ///< [T, b]; null: b = 0
  double factor = 1;
};

NANORUN_DECLARE_OPS({
  /// out = s x, or += with Output::accumulate. `out` may be `x`.
  /// CUDA: T = bf16; products and sums are fp32. Rows of [T, H D] are whole 16-byte vectors and D is a multiple of 8;
  /// else std::invalid_argument.
  template <class T>
  void attention_scale_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const acc_t<T>> s, int heads,
                               Output output);

  /// d_x = s d_out, or += with Output::accumulate; d_s += <d_out, x>. `d_x` may be `d_out`.
  /// CUDA: demands what the forward does.
  template <class T>
  void attention_scale_backward(Stream stream, Mat<T> d_x, Mat<acc_t<T>> d_s, Mat<const T> d_out, Mat<const T> x,
                                Mat<const acc_t<T>> s, int heads, Output output);

  /// CUDA: T = bf16; any alignment.
  template <class T>
  void attention_gate_forward(Stream stream, Mat<acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w);

  /// d_x [T, a] +=, d_u [T, b] +=, d_w +=; null where not wanted. `gate` is the forward's.
  /// CUDA: T = bf16; any alignment. The sums have a fixed order. Where d_w is wanted, the stream needs create_sums().
  template <class T>
  void attention_gate_backward(Stream stream, Mat<T> d_x, Mat<T> d_u, Mat<acc_t<T>> d_w, Mat<const acc_t<T>> d_gate,
                               Mat<const acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w);
})

}  // namespace nanorun::kernels
