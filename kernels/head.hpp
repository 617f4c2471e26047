#pragma once
// Output head and loss, fused so that only a chunk of rows of the logits ever exists.
//   z = x wᵀ,  logit = c tanh(z / c),  loss[t] = logsumexp_v logit[t,v] - logit[t, target[t]]
// Shapes: x [T, d]; w [V, d] (V includes the padded columns, which count in the sum); targets [T].
//
// With HeadPrecision::fp8 the product is emulated as the tensor cores form it, saturating on conversion (Micikevicius
// et al. 2022, arXiv:2209.05433; e4m3 has no infinity and reaches 448, e5m2 reaches 57344; round to nearest even):
//   xq = e4m3(x sx), wq = e4m3(w sw), z = bf16(xq wqᵀ / (sx sw))
//   gq = e5m2(g sg), d_x = gq wq / (sg sw), d_w = gqᵀ xq / (sg sx), where g is the gradient of z.

#include "kernels/types.hpp"

namespace nanorun::kernels {

enum class HeadPrecision { working, fp8 };

/// e^logit is summed in fp32 without a shift.
inline constexpr double max_softcap = 75;

struct HeadOptions {
  double softcap = 15;  ///< c, at most max_softcap
  HeadPrecision precision = HeadPrecision::working;
  double scale_x = 1;
  double scale_w = 1;
  double scale_g = 1;
};

namespace portable {

/// Bytes of scratch that either function below needs.
template <class T>
std::size_t head_workspace(int length, int vocabulary, int width, HeadPrecision precision);

/// *total += sum_t loss[t], *total in the tensors' memory.
template <class T>
void head_loss_forward(Stream stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                       const HeadOptions& options, Workspace workspace);

/// The same, and the gradients of the mean loss over the T rows in one sweep: d_x =, and d_w =, or += with `add`.
template <class T>
void head_loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, bool add, Mat<const T> x,
                        Mat<const T> w, Vec<const Token> targets, const HeadOptions& options, Workspace workspace);

}  // namespace portable

// T = bf16, on a stream with create_blas; z and, in the working precision, its gradient are rounded to bf16. Every call
// quantises x and w. Throws std::invalid_argument unless V and d are multiples of 8, with HeadPrecision::fp8 T, V and d
// multiples of 16, and V is at most 113000.
namespace cuda {

template <class T>
std::size_t head_workspace(int length, int vocabulary, int width, HeadPrecision precision);
template <class T>
void head_loss_forward(Stream stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                       const HeadOptions& options, Workspace workspace);
template <class T>
void head_loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, bool add, Mat<const T> x,
                        Mat<const T> w, Vec<const Token> targets, const HeadOptions& options, Workspace workspace);

}  // namespace cuda
}  // namespace nanorun::kernels
