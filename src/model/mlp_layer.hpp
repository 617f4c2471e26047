#pragma once
// MLP of one layer: hidden units h = relu(W_in n)², output W_out h, each with a bias under model.biases. With
// fp8.mlp.forward = "e4m3", or the rules of train.mlp_precision = "fp8", training sequences round the operands of both
// products to e4m3. The backward pass takes the operands, and h of the forward pass, unrounded; with a fp8.mlp.gradient
// it takes the rounded ones, rounds the gradients too, and h is kept in e4m3 alone.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/biases.hpp"
#include "src/model/fp8_product.hpp"
#include "src/model/fp8_scales.hpp"
#include "src/model/fp8_weights.hpp"
#include "src/model/norm_gains.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class MlpLayer {
 public:
  MlpLayer(const Config& config, const Parameters<T>& parameters, const Weights<T>& weights,
           Fp8ProductScales<T>& scales)
      : parameters_(parameters),
        gains_(config.model, parameters),
        biases_(config.model, parameters),
        scales_(scales),
        fp8_weights_(config, Fp8Product::mlp, parameters, weights, scales) {}

  /// In FP8, quantises the layer's weights, as Fp8Weights::prepare(). Called in each forward pass before forward().
  void prepare_weights(kernels::Stream stream, const Activations<T>& a, int layer) {
    if (a.training()) fp8_weights_.prepare(stream, layer);
  }
  /// Address of the largest magnitude of the norm before the MLP; null where no scale follows it.
  kernels::acc_t<T>* largest_n(const Activations<T>& a, int layer) const {
    return quantises(a) ? scales_.largest_input(layer) : nullptr;
  }
  /// out [T, d] = or += MLP of mlp.norm [T, d], without mlp_out_bias, for as many rows at a time as mlp.h has. In FP8,
  /// training uses a.mlp_sum.
  void forward(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> out, kernels::Output output,
               int layer) const;
  /// Makes a.d_mlp_norm the gradient of the norm, from d_out, the gradient of the output. Replaces the gradients of the
  /// matrices or adds to them.
  void backward(kernels::Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out,
                kernels::Output d_matrices, int layer) const;

 private:
  bool quantises(const Activations<T>& a) const { return scales_ && a.training(); }
  void hidden(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> h, int first, int layer) const;
  void forward_fp8(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> out, kernels::Output output,
                   int layer) const;
  void hidden_fp8(kernels::Stream stream, const Activations<T>& a, kernels::Mat<kernels::Fp8<T>> hq, int layer) const;
  void backward_fp8(kernels::Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out,
                    kernels::Output d_matrices, int layer) const;

  const Parameters<T>& parameters_;
  NormGains<T> gains_;
  Biases<T> biases_;
  Fp8ProductScales<T>& scales_;
  Fp8Weights<T> fp8_weights_;
};

}  // namespace nanorun
