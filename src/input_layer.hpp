#pragma once
// What comes before the blocks: the embedding of tokens, smear, its norm x0, and the embedding of pairs of tokens.

#include "kernels/ops.hpp"
#include "src/activations.hpp"
#include "src/config.hpp"
#include "src/params.hpp"
#include "src/uploader.hpp"

namespace nanorun {

template <class T>
class InputLayer {
 public:
  InputLayer(const ModelConfig& model, const Parameters<T>& parameters) : model_(model), parameters_(parameters) {}

  /// a.input, but for the first stream.
  void forward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;
  /// Adds to the gradients of the tables, from a.d_x0 and a.d_bigram. Uses both up, a.d_narrow and the workspace.
  void backward(kernels::Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const;

 private:
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
};

}  // namespace nanorun
