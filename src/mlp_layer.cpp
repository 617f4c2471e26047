#include "src/mlp_layer.hpp"

#include "src/arena.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;

template <class T>
void MlpLayer<T>::forward(Stream stream, const Activations<T>& a, Mat<T> out, bool adds, int layer) const {
  const MlpActivations<T>& s = a.block[layer].mlp;
  ops::linear_relu2_forward<T>(stream, s.h, s.n, parameters_.weight(block_name(layer, "mlp_in")));
  const Mat<const T> w_out = parameters_.weight(block_name(layer, "mlp_out"));
  if (adds) {
    ops::linear_add_forward<T>(stream, out, s.h, w_out);
  } else {
    ops::linear_forward<T>(stream, out, s.h, w_out);
  }
}

template <class T>
void MlpLayer<T>::backward(Stream stream, const Activations<T>& a, Mat<T> d_out, bool add, int layer) const {
  const MlpActivations<T>& s = a.block[layer].mlp;
  const Mat<const T> w_in = parameters_.weight(block_name(layer, "mlp_in"));
  const Mat<T> d_z = a.d_wide.col_block(0, s.h.cols);
  if (config_.train.recompute == Recompute::mlp) ops::linear_relu2_forward<T>(stream, s.h, s.n, w_in);
  ops::linear_backward_weight<T>(stream, parameters_.gradient(block_name(layer, "mlp_out")), d_out, s.h, add);
  ops::linear_relu2_backward<T>(stream, d_z, d_out, parameters_.weight(block_name(layer, "mlp_out")), s.h);
  ops::linear_backward_weight<T>(stream, parameters_.gradient(block_name(layer, "mlp_in")), d_z, s.n, add);
  ops::linear_backward_input<T>(stream, a.d_narrow, d_z, w_in);
}

template class MlpLayer<Real>;
#if !NANORUN_CUDA
template class MlpLayer<double>;
#endif

}  // namespace nanorun
