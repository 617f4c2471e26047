#pragma once
// Biases of the linear layers of the blocks (model.biases). Those of the layers that add to the stream are not written
// into it: Activations::stream_bias has their sum, and the norms that read the stream add it. Without biases all
// functions do nothing.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class Biases {
 public:
  Biases(const ModelConfig& model, const Parameters<T>& parameters) : model_(model), parameters_(parameters) {}

  /// The bias "block.<layer>.<tensor>" [features], for ops that add it themselves; empty without biases.
  kernels::Vec<const kernels::acc_t<T>> of(int layer, const char* tensor) const;
  /// Before the first block: the stream lacks nothing yet.
  void begin_stream(kernels::Stream stream, const Activations<T>& a) const;
  /// The layer whose bias this is has added its output without it to the stream.
  void add_to_stream(kernels::Stream stream, const Activations<T>& a, int layer, const char* tensor) const;
  /// Adds to the gradient of the bias, from d_out [T, features], the gradient of what it was added to.
  void backward(kernels::Stream stream, kernels::Mat<const T> d_out, int layer, const char* tensor) const;

 private:
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
};

}  // namespace nanorun
