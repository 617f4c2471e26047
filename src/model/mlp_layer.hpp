#pragma once
// MLP of one layer: hidden units h = relu(W_in n)², output W_out h. With train.mlp_precision = "fp8" training sequences
// round the operands of both products to e4m3. The backward pass takes the operands, and h of the forward pass,
// unrounded.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/mlp_scales.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class MlpLayer {
 public:
  MlpLayer(const Config& config, const Parameters<T>& parameters, MlpScales<T>& scales)
      : config_(config), parameters_(parameters), scales_(scales) {}

  /// Once the layer's weights are there, before anything else of it in a forward pass. Those of later layers that
  /// travel in the same buckets are measured at once.
  void enter(const Activations<T>& a, int layer) const;
  /// Where the norm that makes the layer's n is to keep its largest magnitude; null where this is not needed.
  kernels::acc_t<T>* largest_n(const Activations<T>& a, int layer) const {
    return quantises(a) ? scales_.largest_n(layer) : nullptr;
  }
  /// out [T, d] = MLP of the layer's n, or with `adds` += it. In training a.d_narrow is scratch.
  void forward(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> out, bool adds, int layer) const;
  /// a.d_narrow = gradient of n, where d_out is that of the output. Adds to the gradients of the matrices, or with
  /// `add` false replaces them.
  void backward(kernels::Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out, bool add,
                int layer) const;

 private:
  bool quantises(const Activations<T>& a) const { return scales_ && a.training; }
  void hidden(kernels::Stream stream, const Activations<T>& a, int layer, const ops::Fp8Ahead<T>& ahead = {}) const;

  const Config& config_;
  const Parameters<T>& parameters_;
  MlpScales<T>& scales_;
};

}  // namespace nanorun
