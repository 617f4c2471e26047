#pragma once
// What the values of a layer's attention take up beside their projection: the values of layer 0, a value embedding, or
// a gated value embedding; in MUDD's layer also streams of earlier layers.

#include <string>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"
#include "src/model/stream_mixes.hpp"

namespace nanorun {

template <class T>
class AttentionValues {
 public:
  AttentionValues(const ModelConfig& model, const Parameters<T>& parameters, const Coefficients<T>& coefficients,
                  const StreamMixes<T>& mixes)
      : model_(model), parameters_(parameters), coefficients_(coefficients), mixes_(mixes) {}

  /// Forms what the layer's values take up, from the norm that attention reads. Returns how the QKV projection adds
  /// that to the values.
  ops::ValueResidual<T> forward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence,
                                int layer) const;
  /// The result of forward() for the backward pass. a.value_source has been overwritten by then and is not read.
  ops::ValueResidual<T> residual(const Activations<T>& a, const DeviceSequence& sequence, int layer) const;
  ops::ValueResidualGradients<T> residual_gradients(const Activations<T>& a, int layer) const;

  /// Backward pass of a gated value embedding. From d_v [T, d], the gradient of the values that attention reads, it
  /// makes the gradients of the rows and gates, and adds to the gradients of the streams that MUDD mixes in.
  void backward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence, kernels::Mat<T> d_v,
                int layer) const;
  /// Backward pass of the gates themselves, the last of the layer. Adds to attention.d_norm and to the gradients of the
  /// rows and of the gates' weights.
  void backward_gates(kernels::Stream stream, const Activations<T>& a, int layer) const;
  /// In the layer that completes the gradient of a table, adds the gradient of the looked-up rows to it.
  void backward_table(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence, int layer) const;

 private:
  std::string table_name(const BlockPlan& plan) const;
  ops::GateInputs<T> gate_inputs(const Activations<T>& a, int layer) const;
  /// Gates of the value embedding: one per token and head [T, H]. In MUDD's layer each token has two, one for each half
  /// of the heads [T, 2].
  Gate<T> gate(const Activations<T>& a, int layer) const;

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Coefficients<T>& coefficients_;
  const StreamMixes<T>& mixes_;
};

}  // namespace nanorun
