#pragma once
// What comes before the blocks: the embedding of tokens, smear, its norm x0, the second stream (an embedding of pairs
// of tokens, or the norm of a second one of tokens), and the gates of the skips, which read x0.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class InputLayer {
 public:
  InputLayer(const ModelConfig& model, const Parameters<T>& parameters) : model_(model), parameters_(parameters) {}

  /// Makes a.input, except the input of layer 0, which a mix makes.
  void forward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;
  /// Adds to the gradients of the weights, from a.d_x0, a.d_second and a.d_skip_gate. Overwrites the first two and the
  /// workspace.
  void backward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;

 private:
  ops::GateInputs<T> skip_gate_inputs(const Activations<T>& a) const;
  void forward_bigrams(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;
  void backward_bigrams(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;
  void forward_embedding2(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;
  void backward_embedding2(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;

  const ModelConfig& model_;
  const Parameters<T>& parameters_;
};

}  // namespace nanorun
