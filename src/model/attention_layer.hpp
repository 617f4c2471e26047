#pragma once
// Attention of one layer: the QKV projection with QK norm, rotary embedding and what the values take up; softmax
// attention; what is done to the heads; the output projection.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/activations.hpp"
#include "src/model/attention_heads.hpp"
#include "src/model/attention_values.hpp"
#include "src/model/biases.hpp"
#include "src/model/feed.hpp"
#include "src/model/norm_gains.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class AttentionLayer {
 public:
  AttentionLayer(const Config& config, const Parameters<T>& parameters, const AttentionHeads<T>& heads,
                 const AttentionValues<T>& values)
      : config_(config),
        model_(config.model),
        parameters_(parameters),
        gains_(config.model, parameters),
        biases_(config.model, parameters),
        heads_(heads),
        values_(values) {}

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
};

}  // namespace nanorun
