#include "src/model/biases.hpp"

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

template <class T>
kernels::Vec<const acc_t<T>> Biases<T>::of(int layer, const char* tensor) const {
  if (!model_.biases) return {};
  return parameters_.vector(block_name(layer, tensor));
}

template <class T>
void Biases<T>::begin_stream(Stream stream, const Activations<T>& a) const {
  if (model_.biases) ops::fill<acc_t<T>>(stream, a.stream_bias, 0);
}

template <class T>
void Biases<T>::add_to_stream(Stream stream, const Activations<T>& a, int layer, const char* tensor) const {
  if (!model_.biases) return;
  const int width = model_.width;
  const Mat<const acc_t<T>> bias(of(layer, tensor).data(), 1, width);
  ops::add<acc_t<T>>(stream, Mat<acc_t<T>>(a.stream_bias.data(), 1, width), bias);
}

template <class T>
void Biases<T>::backward(Stream stream, Mat<const T> d_out, int layer, const char* tensor) const {
  if (model_.biases) ops::bias_backward<T>(stream, parameters_.d_vector(block_name(layer, tensor)), d_out);
}

NANORUN_INSTANTIATE(class Biases);

}  // namespace nanorun
