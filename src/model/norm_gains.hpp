#pragma once
// Learned gains of the norms of a plain stream (model.norm_gains). A norm is kept without its gain. The layers of
// blocks that read a norm take its gain into their weights, W (g ∘ n) = (W diag(g)) n, which are smaller than the
// stream. Where the norm itself is read, the product lies in Activations::gained. Without gains norms and weights are
// read as they are.

#include <string>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class NormGains {
 public:
  NormGains(const ModelConfig& model, const Parameters<T>& parameters) : model_(model), parameters_(parameters) {}

  // `gain`, `matrix`: names of tensors.

  /// W diag(gain) [features, d], which lies in a.folded until the next call; W itself without gains.
  kernels::Mat<const T> weight(kernels::Stream stream, const Activations<T>& a, const std::string& matrix,
                               const std::string& gain) const;
  /// From d_out [T, features], the gradient of (W diag(gain)) n: replaces the gradient of W or adds to it, and adds to
  /// that of the gain.
  void weight_backward(kernels::Stream stream, const Activations<T>& a, kernels::Mat<const T> d_out,
                       kernels::Mat<const T> n, const std::string& matrix, const std::string& gain,
                       kernels::Output d_matrices) const;

  /// gain ∘ n [T, d], which lies in a.gained until the next call; n itself without gains.
  kernels::Mat<const T> forward(kernels::Stream stream, const Activations<T>& a, kernels::Mat<const T> n,
                                const std::string& gain) const;
  /// From d, the gradient of what forward() returned, makes the gradient of n [T, d], in place, and adds to that of the
  /// gain.
  void backward(kernels::Stream stream, kernels::Mat<T> d, kernels::Mat<const T> n, const std::string& gain) const;

 private:
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
};

}  // namespace nanorun
