#include "src/model/mlp_layer.hpp"

#include <vector>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Output;
using kernels::Stream;

namespace {

/// Memory for h in e4m3 between the two forward products; only backward passes use it otherwise.
template <class T>
Mat<kernels::e4m3> quantised_h(const Activations<T>& a, int hidden) {
  return {reinterpret_cast<kernels::e4m3*>(a.d_hidden.data), a.length, hidden};
}

/// Memory for W_out in e4m3 between them: in the workspace, behind what the first product takes of it.
template <class T>
kernels::Workspace quantised_w_out(const Activations<T>& a, int width, int hidden) {
  return a.workspace.subspan(ops::linear_fp8_workspace<T>(a.length, width, hidden),
                             ops::linear_fp8_workspace<T>(0, hidden, width));
}

}  // namespace

template <class T>
void MlpLayer<T>::measure_weights(const Activations<T>& a, int layer) const {
  if (!quantises(a)) return;
  std::vector<typename MlpScales<T>::Matrices> matrices;
  for (int i = layer; i < layer + parameters_.weights.table().layers_from(layer); ++i) {
    matrices.push_back({parameters_.weight(block_name(i, "mlp_in")), parameters_.weight(block_name(i, "mlp_out"))});
  }
  scales_.measure(layer, matrices);
}

/// h of the layer's norm.
template <class T>
void MlpLayer<T>::hidden(Stream stream, const Activations<T>& a, int layer, const ops::Fp8Ahead<T>& ahead) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  const Mat<const T> w = parameters_.weight(block_name(layer, "mlp_in"));
  if (quantises(a)) {
    const auto scale = scales_.of(layer);
    ops::linear_relu2_forward_fp8<T>(stream, saved.h, scale.largest_h, saved.norm.n, scale.n, w, scale.w_in,
                                     a.workspace, ahead);
  } else {
    const Mat<const T> folded = gains_.weight(stream, a, block_name(layer, "mlp_in"), block_name(layer, "mlp_gain"));
    ops::linear_relu2_forward<T>(stream, saved.h, saved.norm.n, folded, biases_.of(layer, "mlp_in_bias"));
  }
}

template <class T>
void MlpLayer<T>::forward(Stream stream, const Activations<T>& a, Mat<T> out, Output output, int layer) const {
  if (quantises(a)) {
    const bool adds = output == Output::accumulate;
    forward_fp8(stream, a, adds ? a.mlp_sum : out, layer);
    if (adds) ops::add<T>(stream, out, a.mlp_sum);
    return;
  }
  hidden(stream, a, layer);
  ops::linear_forward<T>(stream, out, a.block[layer].mlp.h, parameters_.weight(block_name(layer, "mlp_out")), output);
}

/// out [T, d] =.
template <class T>
void MlpLayer<T>::forward_fp8(Stream stream, const Activations<T>& a, Mat<T> out, int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  const Mat<const T> w = parameters_.weight(block_name(layer, "mlp_out"));
  const auto scale = scales_.of(layer);
  const Mat<kernels::e4m3> hq = quantised_h(a, saved.h.cols);
  const kernels::Workspace wq = quantised_w_out(a, saved.norm.n.cols, saved.h.cols);
  hidden(stream, a, layer, {hq, scale.h, w, scale.w_out, wq});
  ops::linear_forward_fp8<T>(stream, out, saved.h, scale.h, w, scale.w_out, a.workspace, hq, wq);
}

template <class T>
void MlpLayer<T>::backward(Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out, Output d_matrices,
                           int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  if (saved.recomputed) hidden(stream, a, layer);
  ops::linear_backward_weight<T>(stream, parameters_.gradient(block_name(layer, "mlp_out")), d_out.d, saved.h,
                                 d_matrices, d_out.factor);
  biases_.backward(stream, d_out.d, layer, "mlp_out_bias");
  ops::linear_relu2_backward<T>(stream, a.d_hidden, d_out.d, parameters_.weight(block_name(layer, "mlp_out")), saved.h,
                                d_out.factor);
  biases_.backward(stream, a.d_hidden, layer, "mlp_in_bias");
  const std::string w_in = block_name(layer, "mlp_in"), gain = block_name(layer, "mlp_gain");
  gains_.weight_backward(stream, a, a.d_hidden, saved.norm.n, w_in, gain, d_matrices);
  ops::linear_backward_input<T>(stream, a.d_mlp_norm, a.d_hidden, gains_.weight(stream, a, w_in, gain));
}

NANORUN_INSTANTIATE(class MlpLayer);

}  // namespace nanorun
