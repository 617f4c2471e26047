#pragma once
// The forward pass of the squared-relu MLP with operands in e4m3 (Micikevicius et al. 2022, arXiv:2209.05433), each
// with one scale for the whole tensor:
//   aq = e4m3(a / s_a), saturating at 448, where s_a = margin max(m_a, 1e-12) / 448 for a maximum m_a
//   h = relu(s_x s_w xq wqᵀ)²,  then out = s_h s_v hq vqᵀ
// A maximum is taken either of the tensor itself, with margin 1, or of the tensor of an earlier step (a delayed scale),
// with a margin above 1. With the maximum 448 / margin the scale is 1. Maxima lie in the tensors' memory: the caller
// may share them among ranks before they are used, and keep them in checkpoints. The backward pass uses the ops of
// matmul.hpp, on the unquantised x, h and weights. Shapes: x [M, K]; w [N, K]; h [M, N]; v [K', N]; out [M, K'].
//
// The portable implementation emulates the rounding to e4m3, and rounds nothing else. It computes a / s_a as the
// product of a and 1 / s_a in fp32.

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"
#include "kernels/linear/fp8_scale.hpp"

namespace nanorun::kernels {

/// Operands of out = h vᵀ that linear_relu2_forward_fp8 may quantise on the way. On CUDA that saves linear_forward_fp8
/// a pass over h, and a launch. Portable implementations leave the memory as it is.
template <class T>
struct Fp8Ahead {
  Mat<e4m3> hq{};                ///< [M, N], for e4m3(h / s_h); null: nothing is quantised
  Fp8Scale<acc_t<T>> scale_h{};  ///< s_h, the same as linear_forward_fp8 will get
  Mat<const T> v{};              ///< null: hq alone is made
  Fp8Scale<acc_t<T>> scale_v{};  ///< s_v, the same as linear_forward_fp8 will get
  Workspace vq{};                ///< linear_fp8_workspace(0, N, K') bytes, for e4m3(v / s_v)
};

// CUDA: T = bf16. Sums of products have about 14 bits, as the tensor cores' 8-bit GEMMs keep them. h and out are
// rounded to bf16; hq is rounded once, from fp32. Every call quantises the weights anew, in one launch with x. Throws
// std::invalid_argument unless rows are whole 16-byte vectors, the columns of the weights are a multiple of 128, and
// their rows a multiple of 32.
NANORUN_DECLARE_OPS({
  /// Bytes of workspace for either product below of x [rows, inner] and w [cols, inner], with or without Fp8Ahead.
  template <class T>
  std::size_t linear_fp8_workspace(int rows, int inner, int cols);

  /// h = relu(x wᵀ)², and *maximum = max(*maximum, h) over all elements. `maximum` must be neither scale_x.maximum nor
  /// scale_w.maximum.
  /// CUDA: *maximum is taken of the rounded h.
  template <class T>
  void linear_relu2_forward_fp8(Stream stream, Mat<T> h, acc_t<T> * maximum, Mat<const T> x, Fp8Scale<acc_t<T>> scale_x,
                                Mat<const T> w, Fp8Scale<acc_t<T>> scale_w, Workspace workspace,
                                const Fp8Ahead<T>& ahead = {});

  /// out = h vᵀ. hq and vq: what linear_relu2_forward_fp8 has quantised ahead, of the same h and v with the same
  /// scales; or null. vq needs hq.
  template <class T>
  void linear_forward_fp8(Stream stream, Mat<T> out, Mat<const T> h, Fp8Scale<acc_t<T>> scale_h, Mat<const T> v,
                          Fp8Scale<acc_t<T>> scale_v, Workspace workspace, Mat<const e4m3> hq = {}, Workspace vq = {});
})

}  // namespace nanorun::kernels
