#pragma once
// Output head (LM head) and cross-entropy loss, in chunks of rows: the [T, V] logits never exist as a whole.
//   z = x wᵀ,  logit = c tanh(z / c),  loss[t] = logsumexp_v logit[t,v] - logit[t, target[t]]
// Shapes: x [T, d]; w [V, d]; targets [T]. V includes the padding, whose columns count in the sum.
//
// HeadPrecision::fp8: operands in 8-bit formats (Micikevicius et al. 2022, arXiv:2209.05433), rounded to nearest even,
// saturating at 448 (e4m3) and 57344 (e5m2). The portable implementation emulates the tensor cores:
//   xq = e4m3(x sx), wq = e4m3(w sw), z = bf16(xq wqᵀ / (sx sw))
//   gq = e5m2(g sg), d_x = gq wq / (sg sw), d_w = gqᵀ xq / (sg sx), where g is the gradient of z.

#include "kernels/types.hpp"

namespace nanorun::kernels {

enum class HeadPrecision { working, fp8 };

/// e^logit is summed in fp32 without subtracting a maximum first, so logits are bounded.
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

/// *total += sum_t loss[t]; total points to the tensors' memory.
template <class T>
void head_loss_forward(Stream stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                       const HeadOptions& options, Workspace workspace);

/// The same, and the gradients of the mean loss over the T rows: d_x = and d_w =, or d_w += with `add`.
template <class T>
void head_loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, bool add, Mat<const T> x,
                        Mat<const T> w, Vec<const Token> targets, const HeadOptions& options, Workspace workspace);

}  // namespace portable

// T = bf16, on a stream with create_blas(). z is rounded to bf16, as is its gradient in the working precision. Every
// call quantises x and w anew. Throw std::invalid_argument unless V <= 113000 and V and d are multiples of 8; with
// HeadPrecision::fp8, unless T, V and d are multiples of 16.
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
