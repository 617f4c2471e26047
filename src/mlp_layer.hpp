#pragma once
// MLP of one layer: hidden units h = relu(W_in n)², output W_out h.

#include "kernels/ops.hpp"
#include "src/activations.hpp"
#include "src/config.hpp"
#include "src/params.hpp"

namespace nanorun {

template <class T>
class MlpLayer {
 public:
  MlpLayer(const Config& config, const Parameters<T>& parameters) : config_(config), parameters_(parameters) {}

  /// out [T, d] = MLP of the layer's n, or with `adds` += it.
  void forward(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> out, bool adds, int layer) const;
  /// a.d_narrow = gradient of n, where d_out is that of the output. Adds to the gradients of the matrices, or with
  /// `add` false replaces them.
  void backward(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> d_out, bool add, int layer) const;

 private:
  const Config& config_;
  const Parameters<T>& parameters_;
};

}  // namespace nanorun
