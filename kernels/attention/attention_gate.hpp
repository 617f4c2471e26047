#pragma once
// Gates on attention heads: a number per token and head, or per token and group of heads.
//   out[t,h] = s[t, h G / H] x[t,h],  or out[t,h] += that
//   gate[t,h] = factor sigmoid(<w[h], [x[t, 0..a-1]; u[t, 0..b-1]]>)
// Shapes: x, out [T, H D], head-major; s [T, G], G divides H; gate [T, H]; w [H, a + b]; x and u of the gate [T, any].

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// With `add`, out += the product. `out` may be `x`.
template <class T>
void attention_scale_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const acc_t<T>> s, int heads, bool add);

/// d_x += s d_out, or = without `add`; d_s += <d_out, x>. `d_x` may be `d_out`.
template <class T>
void attention_scale_backward(Stream stream, Mat<T> d_x, Mat<acc_t<T>> d_s, Mat<const T> d_out, Mat<const T> x,
                              Mat<const acc_t<T>> s, int heads, bool add);

/// Inputs of a gate: the first columns of one or two streams.
template <class T>
struct GateInputs {
  Mat<const T> x;  ///< [T, a], a column block
  Mat<const T> u;  ///< [T, b]; null: b = 0
  double factor = 1;
};

template <class T>
void attention_gate_forward(Stream stream, Mat<acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w);

/// d_x [T, a] +=, d_u [T, b] +=, d_w +=; null where not wanted. gate is the forward's.
template <class T>
void attention_gate_backward(Stream stream, Mat<T> d_x, Mat<T> d_u, Mat<acc_t<T>> d_w, Mat<const acc_t<T>> d_gate,
                             Mat<const acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w);

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

using portable::GateInputs;

/// T = bf16; products and sums are fp32. Rows of [T, H D] are whole 16-byte vectors and D is a multiple of 8; else
/// std::invalid_argument.
template <class T>
void attention_scale_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const acc_t<T>> s, int heads, bool add);

template <class T>
void attention_scale_backward(Stream stream, Mat<T> d_x, Mat<acc_t<T>> d_s, Mat<const T> d_out, Mat<const T> x,
                              Mat<const acc_t<T>> s, int heads, bool add);

/// T = bf16; any alignment.
template <class T>
void attention_gate_forward(Stream stream, Mat<acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w);

/// The sums have a fixed order. Where d_w is wanted, the stream needs create_sums().
template <class T>
void attention_gate_backward(Stream stream, Mat<T> d_x, Mat<T> d_u, Mat<acc_t<T>> d_w, Mat<const acc_t<T>> d_gate,
                             Mat<const acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w);

}  // namespace nanorun::kernels::cuda
