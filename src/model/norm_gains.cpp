#include "src/model/norm_gains.hpp"

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;

template <class T>
Mat<const T> NormGains<T>::forward(Stream stream, const Activations<T>& a, Mat<const T> n,
                                   const std::string& gain) const {
  if (!model_.norm_gains) return n;
  ops::gain_forward<T>(stream, a.gained, n, parameters_.vector(gain));
  return a.gained;
}

template <class T>
void NormGains<T>::backward(Stream stream, Mat<T> d, Mat<const T> n, const std::string& gain) const {
  if (!model_.norm_gains) return;
  ops::gain_backward<T>(stream, d, parameters_.d_vector(gain), d, n, parameters_.vector(gain));
}

NANORUN_INSTANTIATE(class NormGains);

}  // namespace nanorun
