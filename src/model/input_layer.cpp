#include "src/model/input_layer.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;

template <class T>
ops::GateInputs<T> InputLayer<T>::skip_gate_inputs(const Activations<T>& a) const {
  return {a.input.x0.col_block(0, model_.gate_columns), {}, 2};
}

template <class T>
void InputLayer<T>::forward(Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const {
  const InputActivations<T>& saved = a.input;
  const Mat<T>& rows = model_.smear ? saved.embedding : saved.x0;
  ops::embedding_forward<T>(stream, rows, sequence.tokens, parameters_.weight("embedding"));
  if (model_.smear) {
    ops::smear_forward<T>(stream, saved.x0, saved.embedding, elements(parameters_.scalars("smear_gate")),
                          parameters_.scalars("smear_factor").data);
  }
  if (model_.embedding_norm) ops::rms_norm_forward<T>(stream, saved.x0, saved.rstd0, saved.x0, model_.norm_eps);
  if (saved.skip_gate) {
    ops::attention_gate_forward<T>(stream, saved.skip_gate, skip_gate_inputs(a), parameters_.scalars("skip_gate"));
  }
  if (model_.second_embedding) forward_embedding2(stream, a, sequence);
  if (model_.bigram_rows > 0) forward_bigrams(stream, a, sequence);
}

template <class T>
void InputLayer<T>::forward_embedding2(Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const {
  const InputActivations<T>& saved = a.input;
  ops::embedding_forward<T>(stream, saved.second, sequence.tokens, parameters_.weight("embedding2"));
  ops::rms_norm_forward<T>(stream, saved.second, saved.rstd2, saved.second, model_.norm_eps);
}

template <class T>
void InputLayer<T>::forward_bigrams(Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const {
  const InputActivations<T>& saved = a.input;
  const Mat<T> bigram = saved.second.col_block(0, bigram_columns(model_));
  if (bigram.cols < saved.second.cols) ops::fill<T>(stream, elements(saved.second), 0);
  ops::embedding_forward<T>(stream, bigram, sequence.bigrams, parameters_.weight("bigram"));
  if (model_.bigram_sign_rows > 0) {
    ops::sign_rows<T>(stream, bigram, parameters_.weight("bigram_sign"), sequence.bigram_signs);
  }
}

template <class T>
void InputLayer<T>::backward(Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const {
  const InputActivations<T>& saved = a.input;
  if (saved.skip_gate) {
    ops::attention_gate_backward<T>(stream, a.d_x0.col_block(0, model_.gate_columns), {},
                                    parameters_.d_scalars("skip_gate"), a.d_skip_gate, saved.skip_gate,
                                    skip_gate_inputs(a), parameters_.scalars("skip_gate"));
  }
  if (model_.embedding_norm) {  // which alone reads what it reads
    ops::rms_norm_backward<T>(stream, model_.smear ? a.d_smeared : a.d_embedding, saved.x0, saved.rstd0, a.d_x0,
                              kernels::Output::overwrite);
  } else {
    ops::round_to<T, T>(stream, elements(a.d_embedding), elements(a.d_x0));
  }
  if (model_.smear) {
    ops::smear_backward<T>(stream, a.d_embedding, elements(parameters_.d_scalars("smear_gate")),
                           parameters_.d_scalars("smear_factor").data, a.d_smeared, saved.embedding,
                           elements(parameters_.scalars("smear_gate")), parameters_.scalars("smear_factor").data);
  }
  // The workspace, in which d_x0 and d_smeared lie, is the lookups' from here on.
  ops::embedding_backward<T>(stream, parameters_.gradient("embedding"), sequence.tokens, sequence.order, a.d_embedding,
                             a.workspace);
  if (model_.second_embedding) backward_embedding2(stream, a, sequence);
  if (model_.bigram_rows > 0) backward_bigrams(stream, a, sequence);
}

/// In d_embedding, which no one reads any more.
template <class T>
void InputLayer<T>::backward_embedding2(Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const {
  const InputActivations<T>& saved = a.input;
  ops::rms_norm_backward<T>(stream, a.d_embedding, saved.second, saved.rstd2, a.d_second, kernels::Output::overwrite);
  ops::embedding_backward<T>(stream, parameters_.gradient("embedding2"), sequence.tokens, sequence.order, a.d_embedding,
                             a.workspace);
}

template <class T>
void InputLayer<T>::backward_bigrams(Stream stream, const Activations<T>& a, const DeviceSequence& sequence) const {
  const Mat<T> d_bigram = a.d_second.col_block(0, bigram_columns(model_));
  if (model_.bigram_sign_rows > 0) {
    ops::sign_rows<T>(stream, d_bigram, parameters_.weight("bigram_sign"), sequence.bigram_signs);
  }
  ops::embedding_backward<T>(stream, parameters_.gradient("bigram"), sequence.bigrams, sequence.bigram_order, d_bigram,
                             a.workspace);
}

NANORUN_INSTANTIATE(class InputLayer);

}  // namespace nanorun
