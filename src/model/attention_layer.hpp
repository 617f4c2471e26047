#pragma once
// Attention of one layer: the QKV projection with QK norm (model.qk_norm), rotary embedding and what the values take
// up; softmax attention; what is done to the heads; the output projection. With fp8.qkv.forward = "e4m3" training
// sequences round the operands of the projection to e4m3; the backward pass takes them unrounded, or with a
// fp8.qkv.gradient the rounded ones, and rounds the gradients.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/attention_heads.hpp"
#include "src/model/attention_values.hpp"
#include "src/model/biases.hpp"
#include "src/model/feed.hpp"
#include "src/model/fp8_product.hpp"
#include "src/model/fp8_scales.hpp"
#include "src/model/fp8_weights.hpp"
#include "src/model/norm_gains.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class AttentionLayer {
 public:
  AttentionLayer(const Config& config, const Parameters<T>& parameters, const Weights<T>& weights,
                 const AttentionHeads<T>& heads, const AttentionValues<T>& values, Fp8ProductScales<T>& scales)
      : config_(config),
        model_(config.model),
        parameters_(parameters),
        gains_(config.model, parameters),
        biases_(config.model, parameters),
        heads_(heads),
        values_(values),
        scales_(scales),
        fp8_weights_(config, Fp8Product::qkv, parameters, weights, scales) {}

  /// In 8 bits, quantises the layer's weights, as MlpLayer::prepare_weights().
  void prepare_weights(kernels::Stream stream, const Activations<T>& a, int layer) {
    if (a.training()) fp8_weights_.prepare(stream, layer);
  }
  /// out [T, d] = or += attention of the norm that the layer reads [T, d], without attention_out_bias.
  void forward(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed, kernels::Mat<T> out,
               kernels::Output output, int layer) const;
  /// Forms what forward() saves anew in a backward pass, where the layer does not keep it.
  void recompute(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed, int layer) const;
  /// out [T, d] = the output of forward(), computed anew in a backward pass.
  void recompute_output(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> out, int layer) const;
  /// Backward pass from d_out, the gradient of the output. attention.d_norm = the gradient of the norm; += with
  /// adds_norm_gradient. Replaces the gradients of the matrices or adds to them, and adds to the gradients of learned
  /// scalars and value embeddings.
  void backward(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed, const BranchGradient<T>& d_out,
                kernels::Output d_matrices, int layer) const;

 private:
  kernels::Mat<const T> heads(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed, int layer) const;
  void project(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed,
               const ops::ValueResidual<T>& residual, int layer) const;
  void project_fp8(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed,
                   const ops::ValueResidual<T>& residual, int layer) const;
  void projection_backward(kernels::Stream stream, const Activations<T>& a, kernels::Output d_matrices,
                           int layer) const;
  void projection_backward_fp8(kernels::Stream stream, const Activations<T>& a, kernels::Output d_matrices,
                               int layer) const;
  typename Fp8Operands<T>::Shape shape(const Activations<T>& a) const {
    return {a.length, model_.width, 3 * model_.width, false, scales_.backward()};
  }
  ops::AttentionInputs<T> inputs(const Activations<T>& a, const Feed<T>& feed, int layer) const;
  ops::Rotary<T> rotary(const Feed<T>& feed, const BlockPlan& plan) const;
  const kernels::AttentionMask& mask(const Feed<T>& feed, const BlockPlan& plan) const;

  const Config& config_;
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  NormGains<T> gains_;
  Biases<T> biases_;
  const AttentionHeads<T>& heads_;
  const AttentionValues<T>& values_;
  Fp8ProductScales<T>& scales_;
  Fp8Weights<T> fp8_weights_;
};

}  // namespace nanorun
