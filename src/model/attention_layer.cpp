#include "src/model/attention_layer.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;

template <class T>
void AttentionLayer<T>::forward(Stream stream, const Activations<T>& a, const Feed<T>& feed, Mat<T> out, Output output,
                                int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  const auto mix = values_.forward(stream, a, feed.sequence, layer);
  ops::attention_projection_forward<T>(stream, s.qkv, s.v_mixed, s.rstd_qk, s.n,
                                       parameters_.weight(block_name(layer, "qkv")), rotary(feed, layer), mix,
                                       model_.norm_eps);
  const auto in = inputs(a, feed, layer);
  ops::attention_forward<T>(stream, s.y, s.lse, in, mask(feed, layer), a.workspace);
  const Mat<T> y = heads_.forward(stream, a, in, mask(feed, layer).first_key, layer);
  const Mat<const T> w = parameters_.weight(block_name(layer, "attention_out"));
  if (output == Output::replaces) {
    ops::linear_forward<T>(stream, out, y, w);
  } else {
    ops::linear_add_forward<T>(stream, out, y, w);
  }
}

template <class T>
void AttentionLayer<T>::output_again(Stream stream, const Activations<T>& a, Mat<T> out, int layer) const {
  ops::linear_forward<T>(stream, out, heads_.again(stream, a, layer),
                         parameters_.weight(block_name(layer, "attention_out")));
}

template <class T>
void AttentionLayer<T>::backward(Stream stream, const Activations<T>& a, const Feed<T>& feed,
                                 const BranchGradient<T>& d_out, bool add, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  const int width = model_.width;
  const Mat<T> d_qkv = a.d_wide.col_block(0, 3 * width);
  const ops::Rotary<T> rotary = this->rotary(feed, layer);
  const Mat<T> d_k = rotary.key_offset ? a.d_k_offset : d_qkv.col_block(width, width);
  const Mat<T> d_v = d_qkv.col_block(2 * width, width);
  const auto in = inputs(a, feed, layer);
  const kernels::AttentionMask& mask = this->mask(feed, layer);

  ops::linear_backward_input<T>(stream, a.d_narrow, d_out.d, parameters_.weight(block_name(layer, "attention_out")),
                                d_out.factor);
  const Mat<const T> y = heads_.backward(stream, a, layer);
  ops::linear_backward_weight<T>(stream, parameters_.gradient(block_name(layer, "attention_out")), d_out.d, y, add,
                                 d_out.factor);
  ops::attention_backward<T>(stream, a.d_q, d_k, d_v, s.y, s.lse, a.d_narrow, in, mask, a.workspace);
  heads_.backward_composition(stream, a, in, mask.first_key, d_k, d_v, layer);
  Mat<T> d_v_extra = heads_.value_gradient(a, layer);
  if (d_v_extra && values_.gated(layer)) {
    ops::add<T>(stream, d_v, d_v_extra);
    d_v_extra = {};
  }
  values_.backward(stream, a, feed.sequence, d_v, layer);
  ops::attention_input_backward<T>(stream, d_qkv, values_.gradients(a, layer), s.qkv.col_block(0, 2 * width), s.rstd_qk,
                                   s.qkv.col_block(2 * width, width), a.d_q, d_k, d_v, d_v_extra, rotary,
                                   values_.mix(a, feed.sequence, layer));
  if (layer == 0 && a.d_v_first) ops::add<T>(stream, d_v, a.d_v_first);
  ops::linear_backward_weight<T>(stream, parameters_.gradient(block_name(layer, "qkv")), d_qkv, s.n, add);
  ops::linear_backward_input<T>(stream, s.d_n, d_qkv, parameters_.weight(block_name(layer, "qkv")), nullptr,
                                s.adds_d_n);
  values_.backward_gates(stream, a, layer);
  heads_.backward_gate(stream, a, layer);
}

template <class T>
ops::AttentionInputs<T> AttentionLayer<T>::inputs(const Activations<T>& a, const Feed<T>& feed, int layer) const {
  const AttentionActivations<T>& s = a.block[layer].attention;
  ops::AttentionInputs<T> in;
  const Mat<T> qkv = s.qkv.row_block(0, a.length);
  in.q = qkv.col_block(0, model_.width);
  in.k = qkv.col_block(model_.width, model_.width);
  in.v = s.v_mixed;
  in.heads = model_.heads;
  in.scale = feed.attention_scale;
  in.paired = paired(layer);
  return in;
}

template <class T>
ops::Rotary<T> AttentionLayer<T>::rotary(const Feed<T>& feed, int layer) const {
  ops::Rotary<T> rotary = paired(layer) ? feed.paired_rotary : feed.rotary;
  rotary.key_offset = names(model_.key_offset_layers, layer);
  return rotary;
}

template <class T>
const kernels::AttentionMask& AttentionLayer<T>::mask(const Feed<T>& feed, int layer) const {
  if (paired(layer)) return feed.sequence.paired_mask;
  return is_long_layer(config_.window, layer) ? feed.sequence.long_mask : feed.sequence.short_mask;
}

NANORUN_INSTANTIATE(class AttentionLayer);

}  // namespace nanorun
