#pragma once
// The forward pass of the squared-relu MLP with operands in e4m3 (Micikevicius et al. 2022, arXiv:2209.05433), each
// with one scale for the whole tensor:
//   aq = e4m3(a / s_a), saturating at 448, where s_a = margin max(m_a, 1e-12) / 448 for a maximum m_a
//   h = relu(s_x s_w xq wqᵀ)²,  then out = s_h s_v hq vqᵀ
// A maximum may be that of the tensor itself, with margin 1, or one of an earlier step (a delayed scale), with a margin
// above 1; where it is 448 / margin, the scale is 1. Maxima lie in the tensors' memory: the caller may share them among
// ranks before they are used, and keep them in checkpoints.
// The backward pass is that of matmul.hpp, on x, h and the weights themselves.
// Shapes: x [M, K]; w [N, K]; h [M, N]; v [K', N]; out [M, K'].
//
// The portable implementation emulates the rounding to e4m3. It rounds nothing to bf16: neither products, nor h, nor
// scales, nor a / s_a. a / s_a is the product of a and 1 / s_a in fp32.

#include "kernels/device/types.hpp"

namespace nanorun::kernels::portable {

/// The scale s of an operand; maximum points to the tensors' memory.
template <class A>
struct Fp8Scale {
  const A* maximum = nullptr;
  double margin = 1;
};

/// What linear_relu2_forward_fp8 makes on CUDA for linear_forward_fp8, which saves it a pass over h and a launch. The
/// caller gives the memory; portable implementations leave it as it is.
template <class T>
struct Fp8Ahead {
  Mat<e4m3> hq{};                ///< for e4m3(h / s_h) [M, N]; null: nothing is made
  Fp8Scale<acc_t<T>> scale_h{};  ///< as in linear_forward_fp8
  Mat<const T> v{};              ///< as there; null: hq alone is made
  Fp8Scale<acc_t<T>> scale_v{};  ///< as there
  Workspace vq{};                ///< of linear_fp8_workspace(0, N, K') bytes, for e4m3(v / s_v)
};

/// Bytes of scratch for x [rows, inner] and w [cols, inner] of either product below, whatever is made ahead.
template <class T>
std::size_t linear_fp8_workspace(int rows, int inner, int cols);

/// h = relu(x wᵀ)², and *maximum = max(*maximum, h) over all elements. `maximum` is not that of a scale.
template <class T>
void linear_relu2_forward_fp8(Stream stream, Mat<T> h, acc_t<T>* maximum, Mat<const T> x, Fp8Scale<acc_t<T>> scale_x,
                              Mat<const T> w, Fp8Scale<acc_t<T>> scale_w, Workspace workspace,
                              const Fp8Ahead<T>& ahead = {});

/// out = h vᵀ. hq and vq: null, or what linear_relu2_forward_fp8 has made ahead of this h and v with these scales; vq
/// only with hq.
template <class T>
void linear_forward_fp8(Stream stream, Mat<T> out, Mat<const T> h, Fp8Scale<acc_t<T>> scale_h, Mat<const T> v,
                        Fp8Scale<acc_t<T>> scale_v, Workspace workspace, Mat<const e4m3> hq = {}, Workspace vq = {});

}  // namespace nanorun::kernels::portable

namespace nanorun::kernels::cuda {

using portable::Fp8Ahead;
using portable::Fp8Scale;

// T = bf16. Sums of products have about 14 bits, as the tensor cores' 8-bit GEMMs keep them. h and out are rounded to
// bf16; hq is rounded once, from fp32. `maximum` is that of the rounded h. Weights are quantised in every call, by one
// launch with x.
// Throw std::invalid_argument unless rows are whole, aligned 16-byte vectors and, in the products, the columns of the
// weights are a multiple of 128 and their rows one of 32.

template <class T>
std::size_t linear_fp8_workspace(int rows, int inner, int cols);
template <class T>
void linear_relu2_forward_fp8(Stream stream, Mat<T> h, acc_t<T>* maximum, Mat<const T> x, Fp8Scale<acc_t<T>> scale_x,
                              Mat<const T> w, Fp8Scale<acc_t<T>> scale_w, Workspace workspace,
                              const Fp8Ahead<T>& ahead = {});
template <class T>
void linear_forward_fp8(Stream stream, Mat<T> out, Mat<const T> h, Fp8Scale<acc_t<T>> scale_h, Mat<const T> v,
                        Fp8Scale<acc_t<T>> scale_v, Workspace workspace, Mat<const e4m3> hq = {}, Workspace vq = {});

}  // namespace nanorun::kernels::cuda
