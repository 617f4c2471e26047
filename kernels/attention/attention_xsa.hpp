#pragma once
// XSA: subtracts from each attention head its component along the token's own value, then scales the head by a gate.
// Either part may be missing.
//   out[t,h] = s (y - c p v),  c = tanh(alpha[t,h]),  p = <y, v> / n,  n = max(<v, v>, 1e-8),  s = gate[t,h]
// With g = d_out[t,h]:
//   d_y = s g - (c s <g, v> / n) v,   d_v = -(c s <g, v> / n) (y - 2 p v) - c s p g,  without 2 p v where n = 1e-8
//   d_gate = <g, y> - c p <g, v>,     d_alpha = -(1 - c²) s p <g, v>
// Shapes: y, v, out [T, H D], head-major; alpha and gate [T, H]; rows of alpha may coincide (ld = 0): then
// alpha is one learned scalar per head.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

template <class T>
struct AttentionXsa {
  int heads = 0;
  Mat<const T> y;
  Mat<const T> v;             ///< not read without alpha
  Mat<const acc_t<T>> alpha;  ///< null: c = 0
  Mat<const acc_t<T>> gate;   ///< null: s = 1
};

template <class T>
struct AttentionXsaGradients {
  Mat<T> d_y;             ///< =; may be d_out
  Mat<T> d_v;             ///< =; untouched without alpha
  Mat<acc_t<T>> d_alpha;  ///< +=, summed over t where its rows coincide; untouched without alpha
  Mat<acc_t<T>> d_gate;   ///< =; untouched without a gate
};

NANORUN_DECLARE_OPS({
  /// `out` may be `in.y`.
  /// CUDA: T = bf16, summed in fp32. Rows are whole 16-byte vectors, D is a power of two from 8 to 256; else
  /// std::invalid_argument.
  template <class T>
  void attention_xsa_forward(Stream stream, Mat<T> out, const AttentionXsa<T>& in);

  /// Also computes the forward's out again, into `out`.
  /// CUDA: demands what the forward does, and a stream with create_sums(). All sums have a fixed order. Where the rows
  /// of d_alpha coincide, there are at most 1023 heads; else std::invalid_argument.
  template <class T>
  void attention_xsa_backward(Stream stream, const AttentionXsaGradients<T>& d, Mat<T> out, Mat<const T> d_out,
                              const AttentionXsa<T>& in);
})

}  // namespace nanorun::kernels
