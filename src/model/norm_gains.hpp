#pragma once
// Learned gains of the norms of a plain stream (model.norm_gains). A norm is kept without its gain; the product lies in
// Activations::gained, one at a time. Without gains a norm is read as it is.

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

  /// gain ∘ n [T, d], which lies in a.gained until the next call; n itself without gains. `gain`: name of the tensor.
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
