#pragma once
// Attention of one layer: QKV projection with QK norm, rotary embedding and what the values take up; softmax attention;
// what happens to the heads' outputs; the output projection.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/model/activations.hpp"
#include "src/model/attention_heads.hpp"
#include "src/model/params.hpp"
#include "src/model/values.hpp"

namespace nanorun {

/// A sequence on the device, with the rotary embedding and the scale of the stage that it belongs to.
template <class T>
struct Feed {
  DeviceSequence sequence;
  ops::Rotary<T> rotary, paired_rotary;
  kernels::acc_t<T> attention_scale = 0;
};

template <class T>
class AttentionLayer {
 public:
  /// How the layer's output reaches the stream.
  enum class Output { replaces, adds };

  AttentionLayer(const Config& config, const Parameters<T>& parameters, const AttentionHeads<T>& heads,
                 const Values<T>& values)
      : config_(config), model_(config.model), parameters_(parameters), heads_(heads), values_(values) {}

  /// out [T, d] = attention of the layer's n, or += it.
  void forward(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed, kernels::Mat<T> out, Output output,
               int layer) const;
  /// out [T, d] = what forward() gave, in a backward pass.
  void output_again(kernels::Stream stream, const Activations<T>& a, kernels::Mat<T> out, int layer) const;
  /// Makes d_n the gradient of n, or adds it where layers above have the same n; d_out is that of the output. Adds to
  /// the gradients of the weights, or with `add` false replaces those of the matrices.
  void backward(kernels::Stream stream, const Activations<T>& a, const Feed<T>& feed, const BranchGradient<T>& d_out,
                bool add, int layer) const;

 private:
  ops::AttentionInputs<T> inputs(const Activations<T>& a, const Feed<T>& feed, int layer) const;
  ops::Rotary<T> rotary(const Feed<T>& feed, int layer) const;
  const kernels::AttentionMask& mask(const Feed<T>& feed, int layer) const;
  bool paired(int layer) const { return names(model_.paired_layers, layer); }

  const Config& config_;
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const AttentionHeads<T>& heads_;
  const Values<T>& values_;
};

}  // namespace nanorun
