#include "src/model/mlp_layer.hpp"

#include <algorithm>

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
typename Fp8Operands<T>::Shape shape_of(const Activations<T>& a, int layer, bool backward) {
  return {a.length, a.block[layer].mlp.norm.n.cols, a.d_hidden.cols, true, backward};
}

/// The memory of the gradient of h for numbers in 8 bits: in a forward pass, for hq between its products where it is
/// not kept.
template <class T>
Mat<kernels::Fp8<T>> d_hidden_fp8(const Activations<T>& a) {
  return {reinterpret_cast<kernels::Fp8<T>*>(a.d_hidden.data), a.length, a.d_hidden.cols};
}

}  // namespace

/// h of as many rows of the layer's norm, from `first` on.
template <class T>
void MlpLayer<T>::hidden(Stream stream, const Activations<T>& a, Mat<T> h, int first, int layer) const {
  const Mat<const T> n = a.block[layer].mlp.norm.n.row_block(first, h.rows);
  const Mat<const T> w = gains_.weight(stream, a, block_name(layer, "mlp_in"), block_name(layer, "mlp_gain"));
  ops::linear_relu2_forward<T>(stream, h, n, w, biases_.of(layer, "mlp_in_bias"));
}

template <class T>
void MlpLayer<T>::forward(Stream stream, const Activations<T>& a, Mat<T> out, Output output, int layer) const {
  if (quantises(a)) return forward_fp8(stream, a, out, output, layer);
  const Mat<T> room = a.block[layer].mlp.h;
  const Mat<const T> w_out = parameters_.weight(block_name(layer, "mlp_out"));
  for (int row = 0; row < a.length; row += room.rows) {
    const Mat<T> h = room.row_block(0, std::min(room.rows, a.length - row));
    hidden(stream, a, h, row, layer);
    ops::linear_forward<T>(stream, out.row_block(row, h.rows), h, w_out, output);
  }
}

/// Where the backward pass has no operands in 8 bits, the product is rounded to T before it is added.
template <class T>
void MlpLayer<T>::forward_fp8(Stream stream, const Activations<T>& a, Mat<T> out, Output output, int layer) const {
  const Mat<kernels::Fp8<T>> hq = scales_.backward() ? a.block[layer].mlp.hq : d_hidden_fp8(a);
  hidden_fp8(stream, a, hq, layer);
  const bool apart = output == Output::accumulate && !scales_.backward();
  ops::fp8_linear_forward<T>(stream, apart ? a.mlp_sum : out, hq, fp8_weights_.of(layer).w_out, scales_.factor(h_w_out),
                             apart ? Output::overwrite : output);
  if (apart) ops::add<T>(stream, out, a.mlp_sum);
}

/// hq of the layer's norm, if it is not null, and h where the backward pass reads that.
template <class T>
void MlpLayer<T>::hidden_fp8(Stream stream, const Activations<T>& a, Mat<kernels::Fp8<T>> hq, int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  kernels::WorkspaceAllocator allocator(a.workspace);
  const auto q = Fp8Operands<T>::forward(allocator, shape_of(a, layer, scales_.backward()));
  const auto scale = scales_.of(layer);
  const ops::Fp8Quantisation<T> n{
      .x = saved.norm.n, .q = q.x, .scale = scale.n, .saturated = scales_.count(Fp8Count::input, saved.norm.n.size())};
  const ops::Fp8Factor<acc_t<T>> factors[] = {{scales_.factor(n_w_in), scale.n, scale.w_in},
                                              {.to = scales_.factor(inverse_h), .a = scale.h, .inverse = true},
                                              {scales_.factor(h_w_out), scale.h, scale.w_out}};
  ops::fp8_quantise<T>(stream, {&n, 1}, factors);
  ops::fp8_relu2_forward<T>(stream, hq,
                            {scales_.factor(inverse_h), scale.largest_h, scales_.count(Fp8Count::hidden, hq.size())},
                            q.x, fp8_weights_.of(layer).w_in, scales_.factor(n_w_in), saved.h);
}

template <class T>
void MlpLayer<T>::backward_fp8(Stream stream, const Activations<T>& a, const BranchGradient<T>& d_out,
                               Output d_matrices, int layer) const {
  const MlpActivations<T>& saved = a.block[layer].mlp;
  const std::string w_in = block_name(layer, "mlp_in"), w_out = block_name(layer, "mlp_out");
  kernels::WorkspaceAllocator allocator(a.workspace);
  const auto q = Fp8Operands<T>::backward(allocator, shape_of(a, layer, /*backward=*/true));
  const Mat<kernels::Fp8<T>> d_hidden = d_hidden_fp8(a);
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
  if (saved.recomputed) {
    if (scales_) {
      hidden_fp8(stream, a, saved.hq, layer);
    } else {
      hidden(stream, a, saved.h, 0, layer);
    }
  }
  if (scales_.backward()) return backward_fp8(stream, a, d_out, d_matrices, layer);
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
