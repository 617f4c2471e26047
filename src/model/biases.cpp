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
void Biases<T>::add(Stream stream, Mat<T> out, int layer, const char* tensor) const {
  if (model_.biases) ops::add_bias<T>(stream, out, of(layer, tensor));
}

template <class T>
void Biases<T>::backward(Stream stream, Mat<const T> d_out, int layer, const char* tensor) const {
  if (model_.biases) ops::bias_backward<T>(stream, parameters_.d_vector(block_name(layer, tensor)), d_out);
}

NANORUN_INSTANTIATE(class Biases);

}  // namespace nanorun
