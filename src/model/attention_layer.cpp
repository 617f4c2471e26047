#include "src/model/attention_layer.hpp"

#include <vector>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Output;
using kernels::Stream;

namespace {

/// Products of scales, by their places in the memory for them.
enum Factor { n_w, d_qkv_n, d_qkv_w };

}  // namespace

/// q and k after norm and rotary, and the values, of the layer's norm.
template <class T>
void AttentionLayer<T>::project(Stream stream, const Activations<T>& a, const Feed<T>& feed,
                                const ops::ValueResidual<T>& residual, int layer) const {
  if (scales_ && a.training()) return project_fp8(stream, a, feed, residual, layer);
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const Mat<const T> w = gains_.weight(stream, a, block_name(layer, "qkv"), block_name(layer, "attention_gain"));
  ops::attention_projection_forward<T>(stream, saved.qkv, saved.v_mixed, saved.rstd_qk, saved.norm.n, w,
                                       rotary(feed, a.plan[layer]), residual, model_.norm_eps,
                                       biases_.of(layer, "qkv_bias"));
}

template <class T>
void AttentionLayer<T>::project_fp8(Stream stream, const Activations<T>& a, const Feed<T>& feed,
                                    const ops::ValueResidual<T>& residual, int layer) const {
  const AttentionActivations<T>& saved = a.block[layer].attention;
  kernels::WorkspaceAllocator allocator(a.workspace);
  const auto q = Fp8Operands<T>::forward(allocator, shape(a));
  if (acc_t<T>* const largest = scales_.largest_input(layer)) {
    const ops::Magnitude<T> magnitude{largest, saved.norm.n};
    ops::max_magnitude<T>(stream, {&magnitude, 1});
  }
  const auto scale = scales_.of(layer);
  const ops::Fp8Quantisation<T> n{
      .x = saved.norm.n, .q = q.x, .scale = scale.n, .saturated = scales_.count(Fp8Count::input, saved.norm.n.size())};
  const ops::Fp8Factor<acc_t<T>> factor{scales_.factor(n_w), scale.n, scale.w_in};
  ops::fp8_quantise<T>(stream, {&n, 1}, {&factor, 1});
  ops::attention_projection_forward_fp8<T>(stream, saved.qkv, saved.v_mixed, saved.rstd_qk, q.x,
                                           fp8_weights_.of(layer).w_in, scales_.factor(n_w),
                                           rotary(feed, a.plan[layer]), residual, model_.norm_eps);
}

/// Backward pass of the projection, from a.d_qkv.
template <class T>
void AttentionLayer<T>::projection_backward(Stream stream, const Activations<T>& a, Output d_matrices,
                                            int layer) const {
  if (scales_.backward()) return projection_backward_fp8(stream, a, d_matrices, layer);
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const std::string qkv = block_name(layer, "qkv"), gain = block_name(layer, "attention_gain");
  gains_.weight_backward(stream, a, a.d_qkv, saved.norm.n, qkv, gain, d_matrices);
  ops::linear_backward_input<T>(stream, saved.d_norm, a.d_qkv, gains_.weight(stream, a, qkv, gain), nullptr,
                                kernels::accumulate_if(a.plan[layer].adds_norm_gradient));
}

/// A fixed scale belongs to the gradient of the product with the factor that the values take up, so that the factor
/// does not move what saturates.
template <class T>
void AttentionLayer<T>::projection_backward_fp8(Stream stream, const Activations<T>& a, Output d_matrices,
                                                int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const std::string qkv = block_name(layer, "qkv");
  const int qk = 2 * model_.width;
  kernels::WorkspaceAllocator allocator(a.workspace);
  const auto q = Fp8Operands<T>::backward(allocator, shape(a));
  const kernels::Fp8Format format = scales_.gradient_format();
  if (acc_t<T>* const largest = scales_.largest_d_out(layer)) {
    const ops::Magnitude<T> magnitude{largest, a.d_qkv};
    ops::max_magnitude<T>(stream, {&magnitude, 1});
  }
  auto scale = scales_.of(layer);
  if (!scales_.largest_d_out(layer) && plan.scales_values) {
    scale.d_out.factor = parameters_.scalars(block_name(layer, "attention_factors")).data;
  }
  const auto part = [&](int first, int cols, Fp8Count count) {
    const Mat<const T> d = a.d_qkv.col_block(first, cols);
    return ops::Fp8Quantisation<T>{.x = d,
                                   .q = q.d_out.col_block(first, cols),
                                   .scale = scale.d_out,
                                   .format = format,
                                   .saturated = scales_.count(count, d.size())};
  };
  const ops::Fp8Quantisation<T> quantisations[] = {part(0, qk, Fp8Count::d_out),
                                                   part(qk, model_.width, Fp8Count::d_values),
                                                   {.x = saved.norm.n, .q_t = q.x_t, .scale = scale.n}};
  const ops::Fp8Factor<acc_t<T>> factors[] = {{scales_.factor(d_qkv_n), scale.d_out, scale.n},
                                              {scales_.factor(d_qkv_w), scale.d_out, scale.w_in}};
  ops::fp8_quantise<T>(stream, quantisations, factors);
  ops::fp8_linear_backward_weight<T>(stream, parameters_.gradient(qkv), /*transposes=*/false, q.d_out, format, q.x_t,
                                     kernels::Fp8Format::e4m3, scales_.factor(d_qkv_n), d_matrices, q.weight_gradient);
  ops::fp8_linear_backward_input<T>(stream, saved.d_norm, q.d_out, format, fp8_weights_.of(layer).w_in_t,
                                    scales_.factor(d_qkv_w), kernels::accumulate_if(plan.adds_norm_gradient));
}

/// What the output projection reads [T, d].
template <class T>
Mat<const T> AttentionLayer<T>::heads(Stream stream, const Activations<T>& a, const Feed<T>& feed, int layer) const {
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const ops::ValueResidual<T> residual = values_.forward(stream, a, feed.sequence, layer);
  project(stream, a, feed, residual, layer);
  const auto in = inputs(a, feed, layer);
  const kernels::AttentionMask& mask = this->mask(feed, a.plan[layer]);
  ops::attention_forward<T>(stream, saved.y, saved.lse, in, mask, a.workspace);
  return heads_.forward(stream, a, in, mask.first_key, layer);
}

template <class T>
void AttentionLayer<T>::forward(Stream stream, const Activations<T>& a, const Feed<T>& feed, Mat<T> out, Output output,
                                int layer) const {
  ops::linear_forward<T>(stream, out, heads(stream, a, feed, layer),
                         parameters_.weight(block_name(layer, "attention_out")), output);
}

template <class T>
void AttentionLayer<T>::recompute(Stream stream, const Activations<T>& a, const Feed<T>& feed, int layer) const {
  if (a.block[layer].attention.recomputed) heads(stream, a, feed, layer);
}

template <class T>
void AttentionLayer<T>::recompute_output(Stream stream, const Activations<T>& a, Mat<T> out, int layer) const {
  ops::linear_forward<T>(stream, out, heads_.recompute(stream, a, layer),
                         parameters_.weight(block_name(layer, "attention_out")));
}

template <class T>
void AttentionLayer<T>::backward(Stream stream, const Activations<T>& a, const Feed<T>& feed,
                                 const BranchGradient<T>& d_out, Output d_matrices, int layer) const {
  const BlockPlan& plan = a.plan[layer];
  const AttentionActivations<T>& saved = a.block[layer].attention;
  const int width = model_.width;
  const ops::Rotary<T> rotary = this->rotary(feed, plan);
  const Mat<T> d_k = rotary.key_offset ? a.d_k_offset : a.d_qkv.col_block(width, width);
  const Mat<T> d_v = a.d_qkv.col_block(2 * width, width);
  const auto in = inputs(a, feed, layer);
  const kernels::AttentionMask& mask = this->mask(feed, plan);

  ops::linear_backward_input<T>(stream, a.d_heads, d_out.d, parameters_.weight(block_name(layer, "attention_out")),
                                d_out.factor);
  const Mat<const T> y = heads_.backward(stream, a, layer);
  ops::linear_backward_weight<T>(stream, parameters_.gradient(block_name(layer, "attention_out")), d_out.d, y,
                                 d_matrices, d_out.factor);
  biases_.backward(stream, d_out.d, layer, "attention_out_bias");
  const ops::ValueResidual<T> residual = values_.residual(a, feed.sequence, layer);
  const ops::ValueResidualGradients<T> d_residual = values_.residual_gradients(a, layer);
  ops::AttentionValueFactor<T> factor;
  const bool completes_values = !plan.takes_up_values && !plan.has_xsa && !plan.composes_heads;
  if (completes_values) factor = {residual.lambda, d_residual.d_lambda};
  ops::attention_backward<T>(stream, a.d_q, d_k, d_v, saved.y, saved.lse, a.d_heads, in, mask, a.workspace, factor);
  heads_.backward_composition(stream, a, in, mask.first_key, d_k, d_v, layer);
  Mat<T> d_v_extra = heads_.value_gradient(a, layer);
  if (d_v_extra && plan.gates_value_rows) {
    ops::add<T>(stream, d_v, d_v_extra);
    d_v_extra = {};
  }
  values_.backward(stream, a, feed.sequence, d_v, layer);
  ops::attention_input_backward<T>(stream, a.d_qkv, d_residual, saved.qkv.col_block(0, 2 * width), saved.rstd_qk,
                                   saved.qkv.col_block(2 * width, width), a.d_q, d_k, completes_values ? Mat<T>() : d_v,
                                   d_v_extra, rotary, residual);
  if (plan.lends_values) ops::add<T>(stream, d_v, a.d_v_first);
  biases_.backward(stream, a.d_qkv, layer, "qkv_bias");
  projection_backward(stream, a, d_matrices, layer);
  values_.backward_gates(stream, a, layer);
  heads_.backward_gate(stream, a, layer);
}

template <class T>
ops::AttentionInputs<T> AttentionLayer<T>::inputs(const Activations<T>& a, const Feed<T>& feed, int layer) const {
  const AttentionActivations<T>& saved = a.block[layer].attention;
  ops::AttentionInputs<T> in;
  const Mat<T> qkv = saved.qkv.row_block(0, a.length);
  in.q = qkv.col_block(0, model_.width);
  in.k = qkv.col_block(model_.width, model_.width);
  in.v = saved.v_mixed;
  in.heads = model_.heads;
  in.scale = feed.attention_scales[layer];
  in.paired = a.plan[layer].pairs_heads;
  return in;
}

template <class T>
ops::Rotary<T> AttentionLayer<T>::rotary(const Feed<T>& feed, const BlockPlan& plan) const {
  ops::Rotary<T> rotary = plan.pairs_heads ? feed.paired_rotary : feed.rotary;
  rotary.key_offset = plan.offsets_keys;
  rotary.live_pairs = plan.qk_dim / 2;
  if (plan.offsets_keys) rotary.still_from = turning_pairs(model_);
  rotary.norms = model_.qk_norm;
  return rotary;
}

template <class T>
const kernels::AttentionMask& AttentionLayer<T>::mask(const Feed<T>& feed, const BlockPlan& plan) const {
  if (plan.pairs_heads) return feed.sequence.paired_mask;
  return is_long_layer(config_.window, plan.layer) ? feed.sequence.long_mask : feed.sequence.short_mask;
}

NANORUN_INSTANTIATE(class AttentionLayer);

}  // namespace nanorun
