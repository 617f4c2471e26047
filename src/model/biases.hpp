#pragma once
// Biases of the linear layers of the blocks (model.biases). Without them all functions do nothing.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class Biases {
 public:
  Biases(const ModelConfig& model, const Parameters<T>& parameters) : model_(model), parameters_(parameters) {}

  /// The bias "block.<layer>.<tensor>" [features], for ops that add it themselves; empty without biases.
  kernels::Vec<const kernels::acc_t<T>> of(int layer, const char* tensor) const;
  /// out [T, features] += the bias.
  void add(kernels::Stream stream, kernels::Mat<T> out, int layer, const char* tensor) const;
  /// Adds to the gradient of the bias, from d_out [T, features], the gradient of what it was added to.
  void backward(kernels::Stream stream, kernels::Mat<const T> d_out, int layer, const char* tensor) const;

 private:
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
};

}  // namespace nanorun
