#pragma once
// LM head and cross-entropy loss, in chunks of rows: the [T, V] logits never exist as a whole.
//   z = x wᵀ + bias,  logit = c tanh(z / c), c sigmoid((z + shift) / width), c z / sqrt(z² + c²) (isru), or z (none)
//   loss[t] = sum_k weight_k (L[t] - logit[t, target[t + k]]) + prefix_weight (L[t] - logit[t, prefix[target[t]]]),
//   with L[t] = logsumexp_v logit[t,v]. Targets behind the last row, and prefixes of -1, have no term.
// Shapes: x [T, d]; w [V, d]; bias [V], or empty for none; targets [T]; prefix [vocabulary]. V includes the padding,
// whose columns count in the sum. Gradient: d_z[t] = logit'(z) (S[t] softmax(logit[t]) - the weights, each at the
// column of its target), where S[t] is the sum of all weight_k, plus prefix_weight where row t has a prefix. In the
// last rows S[t] keeps the weights of targets that have no term.
//
// LmHeadPrecision::fp8: operands in 8-bit formats (Micikevicius et al. 2022, arXiv:2209.05433), rounded to nearest
// even, saturating at 448 (e4m3) and 57344 (e5m2). The portable implementation emulates the tensor cores:
//   xq = e4m3(x sx), wq = e4m3(w sw), z = bf16(xq wqᵀ / (sx sw)), logit = c bf16(sigmoid((z + shift) / width))
//   gq = e5m2(g sg), d_x = gq wq / (sg sw), d_w = gqᵀ xq / (sg sx), where g is the gradient of z.

#include <array>
#include <cmath>
#include <type_traits>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

enum class LmHeadPrecision { working, fp8 };

/// e^logit is summed in fp32 without subtracting a maximum first, so logits with a softcap are bounded. Without one the
/// maximum of the row is subtracted.
inline constexpr double max_softcap = 75;

/// isru: inverse square root unit.
enum class SoftcapKind { tanh, sigmoid, isru, none };

/// Targets that a row may have: the next token, and those one and two later.
inline constexpr int max_targets = 3;

struct LmHeadOptions {
  double softcap = 15;  ///< c, at most max_softcap; not read with SoftcapKind::none
  SoftcapKind kind = SoftcapKind::tanh;
  double softcap_shift = 0, softcap_width = 1;  ///< SoftcapKind::sigmoid: sigmoid((z + shift) / width)
  std::array<double, max_targets> target_weights{1, 0, 0};
  int targets = 1;
  double prefix_weight = 0;
  Vec<const std::int32_t> prefix{};  ///< in the tensors' memory; empty: none
  double loss_scale = 0;             ///< factor on the gradients of the summed loss; 0: 1 / T, the mean's
  LmHeadPrecision precision = LmHeadPrecision::working;
  double scale_x = 1;
  double scale_w = 1;
  double scale_g = 1;
};

/// The logit of z.
inline double softcap(double z, const LmHeadOptions& options) {
  const double c = options.softcap;
  switch (options.kind) {
    case SoftcapKind::tanh:
      return c * std::tanh(z / c);
    case SoftcapKind::sigmoid:
      return c / (1 + std::exp(-(z + options.softcap_shift) / options.softcap_width));
    case SoftcapKind::isru:
      return z / std::sqrt(1 + z / c * (z / c));
    case SoftcapKind::none:
      break;
  }
  return z;
}

// CUDA: T = bf16, on a stream with create_blas(). z is rounded to bf16, and its gradient too in the working precision.
// Every call quantises x and w anew. Throws std::invalid_argument unless V <= max_vocabulary (cuda_limits.hpp), and V
// and d are multiples of 8; with LmHeadPrecision::fp8, unless T, V and d are multiples of 16 and there is no bias.
NANORUN_DECLARE_OPS({
  /// Bytes of workspace that each op below needs.
  template <class T>
  std::size_t lm_head_workspace(int length, int vocabulary, int width, LmHeadPrecision precision);

  /// *total += sum_t loss[t]; total points to the tensors' memory.
  template <class T>
  void lm_head_loss_forward(Stream stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                            const LmHeadOptions& options, Workspace workspace,
                            Vec<const std::type_identity_t<acc_t<T>>> bias = {});

  /// losses[t] = loss[t]; losses [T]
  template <class T>
  void lm_head_losses(Stream stream, Vec<acc_t<T>> losses, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                      const LmHeadOptions& options, Workspace workspace,
                      Vec<const std::type_identity_t<acc_t<T>>> bias = {});

  /// *total += sum_t loss[t], and the gradients of loss_scale sum_t loss[t]: d_x =; d_w =, or += with
  /// Output::accumulate; d_bias +=. CUDA: a bias needs a stream with create_sums().
  template <class T>
  void lm_head_loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, Output output, Mat<const T> x,
                             Mat<const T> w, Vec<const Token> targets, const LmHeadOptions& options,
                             Workspace workspace, Vec<const std::type_identity_t<acc_t<T>>> bias = {},
                             Vec<std::type_identity_t<acc_t<T>>> d_bias = {});

  /// *maximum = max(*maximum, |d_z|) over all rows and columns, with d_z the gradient of loss_scale sum_t loss[t].
  /// `maximum` points to the tensors' memory. LmHeadPrecision::working alone.
  template <class T>
  void lm_head_largest_gradient(Stream stream, acc_t<T> * maximum, Mat<const T> x, Mat<const T> w,
                                Vec<const Token> targets, const LmHeadOptions& options, Workspace workspace,
                                Vec<const std::type_identity_t<acc_t<T>>> bias = {});
})

}  // namespace nanorun::kernels
