#include "src/model/norm_gains.hpp"

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Output;
using kernels::Stream;

template <class T>
Mat<const T> NormGains<T>::weight(Stream stream, const Activations<T>& a, const std::string& matrix,
                                  const std::string& gain) const {
  const Mat<const T> w = parameters_.weight(matrix);
  if (!model_.norm_gains) return w;
  const Mat<T> folded = a.folded.row_block(0, w.rows);
  ops::gain_forward<T>(stream, folded, w, parameters_.vector(gain));
  return folded;
}

template <class T>
void NormGains<T>::weight_backward(Stream stream, const Activations<T>& a, Mat<const T> d_out, Mat<const T> n,
                                   const std::string& matrix, const std::string& gain, Output d_matrices) const {
  const Mat<acc_t<T>> d_w = parameters_.gradient(matrix);
  if (!model_.norm_gains) return ops::linear_backward_weight<T>(stream, d_w, d_out, n, d_matrices);
  const Mat<acc_t<T>> d_folded = a.d_folded.row_block(0, d_w.rows);
  ops::linear_backward_weight<T>(stream, d_folded, d_out, n, Output::overwrite);
  ops::gain_unfold<T>(stream, d_w, d_matrices, parameters_.d_vector(gain), d_folded, parameters_.weight(matrix),
                      parameters_.vector(gain));
}

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
