#pragma once
// Smear: each embedding takes up a part of the one before it, through a gate that reads its first columns.
//   out[0] = e[0],  out[t] = e[t] + scale sigmoid(<w, e[t, 0..g-1]>) e[t-1]
// Shapes: e, out [T, d]; w [g]; scale [1]; w and scale are learned and lie in the tensors' memory.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// Most columns g of the gate, which are also at most d. Ops throw std::invalid_argument for more.
inline constexpr int max_smear_gate = 32;

NANORUN_DECLARE_OPS({
  /// CUDA: T = bf16; rows are whole 16-byte vectors; else std::invalid_argument.
  template <class T>
  void smear_forward(Stream stream, Mat<T> out, Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale);

  /// d_e = gradient of e; d_w +=, d_scale +=. d_e must not be d_out.
  /// CUDA: demands what the forward does, and a stream with create_sums(). The sums have a fixed order.
  template <class T>
  void smear_backward(Stream stream, Mat<T> d_e, Vec<acc_t<T>> d_w, acc_t<T> * d_scale, Mat<const T> d_out,
                      Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale);
})

}  // namespace nanorun::kernels
