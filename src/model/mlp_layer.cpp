#include "src/model/mlp_layer.hpp"

#include <vector>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Output;
using kernels::Stream;

namespace {

/// Products of scales, by their places in the memory for them.
enum Factor { n_w_in, inverse_h, h_w_out, only_h, d_out_w_out, inverse_d_hidden, d_out_h, d_hidden_n, d_hidden_w_in };

template <class T>
typename Fp8Operands<T>::Shape shape_of(const Activations<T>& a, const MlpActivations<T>& saved) {
  return {a.length, saved.norm.n.cols, saved.hq.cols, true};
}

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
  if (quantises_backward(a)) {
    hidden_fp8(stream, a, layer);
    ops::fp8_linear_forward<T>(stream, out, a.block[layer].mlp.hq, fp8_weights_.of(layer).w_out,
                               scales_.factor(h_w_out), output);
    return;
  }
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

/// hq of the layer's norm.
template <class T>
void MlpLayer<T>::hidden_fp8(Stream stream, const Activations<T>& a, int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  kernels::WorkspaceAllocator allocator(a.workspace);
  const auto q = Fp8Operands<T>::forward(allocator, shape_of(a, saved));
  const auto scale = scales_.of(layer);
  const ops::Fp8Quantisation<T> n{
      .x = saved.norm.n, .q = q.x, .scale = scale.n, .saturated = scales_.count(Fp8Count::input, saved.norm.n.size())};
  const ops::Fp8Factor<acc_t<T>> factors[] = {{scales_.factor(n_w_in), scale.n, scale.w_in},
                                              {.to = scales_.factor(inverse_h), .a = scale.h, .inverse = true},
                                              {scales_.factor(h_w_out), scale.h, scale.w_out}};
  ops::fp8_quantise<T>(stream, {&n, 1}, factors);
  ops::fp8_relu2_forward<T>(
      stream, saved.hq, {scales_.factor(inverse_h), scale.largest_h, scales_.count(Fp8Count::hidden, saved.hq.size())},
      q.x, fp8_weights_.of(layer).w_in, scales_.factor(n_w_in));
}

template <class T>
void MlpLayer<T>::backward_fp8(Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out,
                               Output d_matrices, int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  const std::string w_in = block_name(layer, "mlp_in"), w_out = block_name(layer, "mlp_out");
  kernels::WorkspaceAllocator allocator(a.workspace);
  const auto q = Fp8Operands<T>::backward(allocator, shape_of(a, saved));
  const Mat<kernels::Fp8<T>> d_hidden(reinterpret_cast<kernels::Fp8<T>*>(a.d_hidden.data), a.length, saved.hq.cols);
  const kernels::Fp8Format format = scales_.gradient_format();
  if (acc_t<T>* const largest = scales_.largest_d_out(layer)) {
    const ops::Magnitude<T> magnitude{largest, d_out.d};
    ops::max_magnitude<T>(stream, {&magnitude, 1});
  }
  auto scale = scales_.of(layer);
  if (scales_.largest_d_out(layer)) scale.d_out.factor = d_out.factor;
  const ops::Fp8Quantisation<T> quantisations[] = {{.x = d_out.d,
                                                    .q = q.d_out,
                                                    .q_t = q.d_out_t,
                                                    .scale = scale.d_out,
                                                    .format = format,
                                                    .factor = d_out.factor,
                                                    .saturated = scales_.count(Fp8Count::d_out, d_out.d.size())},
                                                   {.x = saved.norm.n, .q_t = q.x_t, .scale = scale.n}};
  const ops::Fp8Factor<acc_t<T>> factors[] = {
      {.to = scales_.factor(only_h), .a = scale.h},
      {scales_.factor(d_out_w_out), scale.d_out, scale.w_out},
      {.to = scales_.factor(inverse_d_hidden), .a = scale.d_hidden, .inverse = true},
      {scales_.factor(d_out_h), scale.d_out, scale.h},
      {scales_.factor(d_hidden_n), scale.d_hidden, scale.n},
      {scales_.factor(d_hidden_w_in), scale.d_hidden, scale.w_in}};
  ops::fp8_quantise<T>(stream, quantisations, factors);
  const auto e4m3 = kernels::Fp8Format::e4m3;
  const auto& weights = fp8_weights_.of(layer);
  ops::fp8_linear_backward_weight<T>(stream, parameters_.gradient(w_out), /*transposes=*/true, saved.hq, e4m3,
                                     q.d_out_t, format, scales_.factor(d_out_h), d_matrices, q.weight_gradient);
  ops::fp8_relu2_backward<T>(
      stream, d_hidden,
      {scales_.factor(inverse_d_hidden), scale.largest_d_hidden, scales_.count(Fp8Count::d_hidden, d_hidden.size())},
      q.d_out, format, weights.w_out_t, scales_.factor(d_out_w_out), saved.hq, scales_.factor(only_h));
  ops::fp8_linear_backward_weight<T>(stream, parameters_.gradient(w_in), /*transposes=*/false, d_hidden, format, q.x_t,
                                     e4m3, scales_.factor(d_hidden_n), d_matrices, q.weight_gradient);
  ops::fp8_linear_backward_input<T>(stream, a.d_mlp_norm, d_hidden, format, weights.w_in_t,
                                    scales_.factor(d_hidden_w_in));
}

template <class T>
void MlpLayer<T>::backward(Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out, Output d_matrices,
                           int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  if (quantises_backward(a)) {
    if (saved.recomputed) hidden_fp8(stream, a, layer);
    return backward_fp8(stream, a, d_out, d_matrices, layer);
  }
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
