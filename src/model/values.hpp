#pragma once
// What the values of attention take up beside their projection: the first layer's values, a value embedding, or a gated
// value embedding, in the last layer under MUDD together with streams of earlier layers.

#include <string>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/model/activations.hpp"
#include "src/model/mixes.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class Values {
 public:
  Values(const ModelConfig& model, const Parameters<T>& parameters, const Coefficients<T>& coefficients,
         const Mixes<T>& mixes)
      : model_(model), parameters_(parameters), coefficients_(coefficients), mixes_(mixes) {}

  /// Whether a layer has a gated value embedding: backward() reads the gradient of its values.
  bool gated(int layer) const {
    return model_.value_path == ValuePath::gated_embeddings && value_embedding_of(model_, layer) >= 0;
  }

  /// How the projection of a layer mixes its values. Forms what they take up, from attention's input n.
  ops::ValueMix<T> forward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence,
                           int layer) const;
  /// The same mix for the backward pass, which does not form it again: what was in a.aux is gone, and is not read.
  ops::ValueMix<T> mix(const Activations<T>& a, const DeviceSequence& sequence, int layer) const;
  ops::ValueMixGradients<T> gradients(const Activations<T>& a, int layer) const;

  /// Sends d_v [T, d], the gradient of the mixed values, to the sources of gated embeddings, but for the gates' inputs.
  void backward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence, kernels::Mat<T> d_v,
                int layer) const;
  /// The gates' inputs: d_n +=. Then no layer above and not this one adds to the gradient of
  /// the embedding's rows.
  void backward_gates(kernels::Stream stream, const Activations<T>& a, int layer) const;
  /// Adds the gradient of the rows to that of the table, where no layer below takes up the same table.
  void backward_table(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence, int layer) const;

 private:
  std::string table(int layer) const;
  ops::GateInputs<T> gate_inputs(const Activations<T>& a, int layer) const;
  /// Of the value embedding's heads, or of halves of them.
  Gate<T> gate(const Activations<T>& a, int layer) const;

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Coefficients<T>& coefficients_;
  const Mixes<T>& mixes_;
};

}  // namespace nanorun
