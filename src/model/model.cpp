// The passes. Each backward function stands below its forward function; read it from bottom to top beside that.

#include "src/model/model.hpp"

#include <algorithm>
#include <utility>

#include "src/base/instantiate.hpp"
#include "src/measure/profile.hpp"
#include "src/model/sampled_lm_head.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Output;

namespace {

/// The backward pass through a norm, where d_n [T, d] is the gradient of its n.
template <class T>
ops::NormGradient<T> through(const NormActivations<T>& norm, const Mat<T>& d_n) {
  return {norm.n, norm.rstd, d_n};
}

/// The gradient that layers above have sent to the block's input, for the mix that adds it; null for other mixes.
template <class T>
Mat<T> sent_from_above(const Activations<T>& a, const BlockPlan& plan, BlockMix mix) {
  return mix == plan.joins_in ? a.d_layer_input[plan.layer] : Mat<T>();
}

// Arguments of the backward passes of a block's mixes.

/// d_out: gradient of the block's output, where a.d_x does not hold it.
template <class T>
ops::MixBackward<T> d_after_mlp(const Activations<T>& a, const BlockPlan& plan, const ops::ScaledGradient<T>& d_out) {
  ops::MixBackward<T> d{.d_out = a.d_x, .d_elsewhere = sent_from_above(a, plan, BlockMix::after_mlp)};
  d.scaled_d_in = d_out;
  if (plan.norms_next) {
    const AttentionActivations<T>& next = a.block[plan.layer + 1].attention;
    d.norm = through(next.norm, next.d_norm);
  }
  return d;
}

/// With leaves_factors the gradient of the stream before the MLP is a factor times a.d_x, and the mix writes its own g
/// to mlp.d_x.
template <class T>
ops::MixBackward<T> d_after_attention(const Activations<T>& a, const BlockPlan& plan, const StreamMixes<T>& mixes) {
  const MlpActivations<T>& mlp = a.block[plan.layer].mlp;
  ops::MixBackward<T> d{.d_out = a.d_x, .d_elsewhere = sent_from_above(a, plan, BlockMix::after_attention)};
  d.norm = through(mlp.norm, a.d_mlp_norm);
  if (plan.leaves_factors) {
    d.scaled_d_in = {a.d_x, mixes.mlp_residual(plan.layer)};
    d.g = mlp.d_x;
  }
  return d;
}

template <class T>
ops::MixBackward<T> d_before(const Activations<T>& a, const BlockPlan& plan) {
  return {.d_out = a.d_x, .d_elsewhere = sent_from_above(a, plan, BlockMix::before)};
}

/// Gradient of what the MLP adds, as the mix behind it leaves it.
template <class T>
BranchGradient<T> d_mlp_out(const Activations<T>& a, const BlockPlan& plan) {
  if (!plan.leaves_factors) return {a.d_branch_out};
  return {a.d_x, a.d_branch_factor.data()};
}

/// Gradient of what attention adds, as the mix behind it leaves it.
template <class T>
BranchGradient<T> d_attention_out(const Activations<T>& a, const BlockPlan& plan) {
  if (!plan.leaves_factors) return {a.d_branch_out};
  return {a.block[plan.layer].mlp.d_x, a.d_branch_factor.data()};
}

}  // namespace

template <class T>
void Model<T>::forward_backward(Trace& trace, const DeviceSequence& sequence, long step, Accumulate accumulate,
                                const LayerHooks& hooks) {
  Activations<T>& a = training_for(sequence);
  const Feed<T> feed = this->feed(sequence, stage_of(config_, step));
  fp8_scales_.begin_sequence(step);
  {
    Region region(trace, Phase::forward);
    forward(a, feed, hooks);
  }
  zero_branches_.mark(stream_, a);
  {
    Region region(trace, Phase::head);
    if (!accumulate.others && !accumulate.cleared) ops::fill<Gradient>(stream_, d_others_, 0);
    if (hooks.enter) hooks.enter(config_.model.layers);
    lm_head_forward_backward(a, sequence, step, kernels::accumulate_if(accumulate.others));
  }
  if (hooks.leave) hooks.leave(config_.model.layers);
  Region region(trace, Phase::backward);
  backward(a, feed, kernels::accumulate_if(accumulate.matrices), hooks);
  training_uploader_->release(stream_);
}

/// Adds to the loss, and makes the gradients of the LM head and of the final norm.
template <class T>
void Model<T>::lm_head_forward_backward(Activations<T>& a, const DeviceSequence& sequence, long step, Output output) {
  const Mat<const T> x = gains_.forward(stream_, a, a.final_norm.n, "final_gain");
  const Mat<const T> w = parameters_.weight("head");
  const Mat<Gradient> d_w = parameters_.gradient("head");
  kernels::LmHeadOptions options = lm_head_options(step);
  if (sequence.candidates.empty()) {
    ops::lm_head_loss_backward<T>(
        stream_, loss_.device(), a.d_final_norm, d_w, output, x, w, sequence.targets, options, a.workspace,
        lm_head_bias(), config_.model.head_bias ? parameters_.d_vector("head_bias") : kernels::Vec<Gradient>());
    return;
  }
  if (!options.prefix.empty()) options.prefix = sequence.candidate_prefixes;
  SampledLmHead<T>::loss_backward(stream_, loss_.device(), a.d_final_norm, d_w, output, x, w, sequence, options,
                                  a.workspace);
}

template <class T>
void Model<T>::forward(Activations<T>& a, const Feed<T>& feed, const LayerHooks& hooks) {
  if (hooks.enter) hooks.enter(-1);
  input_.forward(stream_, a, feed.sequence);
  coefficients_.forward(stream_, a.coefficients, reads_x0, a.input.x0);
  first_input_forward(a);
  for (const BlockPlan& plan : a.plan) {
    if (hooks.enter) hooks.enter(plan.layer);
    const NamedRange range(layer_range(plan.layer));
    mlp_.prepare_weights(stream_, a, plan.layer);
    attention_.prepare_weights(stream_, a, plan.layer);
    coefficients_.forward(stream_, a.coefficients, plan.layer, a.layer_input(plan.layer));
    switch (config_.model.residual) {
      case Residual::unet:
        unet_block_forward(a, feed, plan);
        break;
      case Residual::scaled:
        scaled_block_forward(a, feed, plan);
        break;
      case Residual::before:
        before_block_forward(a, feed, plan);
        break;
      case Residual::plain:
        plain_block_forward(a, feed, plan);
    }
  }
  final_norm_forward(a);
}

/// From a.d_final_norm, the gradient of the final norm.
template <class T>
void Model<T>::backward(Activations<T>& a, const Feed<T>& feed, Output d_matrices, const LayerHooks& hooks) {
  const Residual residual = config_.model.residual;
  const RoundedGradients<T>& rounded = parameters_.rounded;
  const Output kept = std::exchange(d_matrices, rounded ? Output::overwrite : d_matrices);
  clear_gradients(a);
  final_norm_backward(a);
  ops::ScaledGradient<T> d_stream;
  for (int layer = config_.model.layers - 1; layer >= 0; --layer) {
    const NamedRange range(layer_range(layer));
    attention_.recompute(stream_, a, feed, layer);
    if (residual == Residual::unet) {
      unet_block_backward(a, feed, d_matrices, a.plan[layer]);
    } else if (residual == Residual::plain) {
      plain_block_backward(a, feed, d_matrices, a.plan[layer]);
    } else if (residual == Residual::before) {
      before_block_backward(a, feed, d_matrices, a.plan[layer]);
    } else {
      d_stream = scaled_block_backward(a, feed, d_matrices, d_stream, a.plan[layer]);
      injections_backward(a, a.plan[layer].injections);
      coefficients_.backward(stream_, a.coefficients, layer, a.d_x, a.layer_input(layer));
    }
    values_.backward_table(stream_, a, feed.sequence, layer);
    if (rounded) rounded.keep(stream_, layer, kept);
    if (hooks.leave) hooks.leave(layer);
  }
  if (residual == Residual::unet) ops::add<T>(stream_, a.d_x0, a.d_x);
  if (residual == Residual::scaled || residual == Residual::before) injections_backward(a, last_injections(a.plan));
  if (config_.model.embedding_norm) gains_.backward(stream_, a.d_x0, a.input.x0, "embedding_gain");
  coefficients_.backward(stream_, a.coefficients, reads_x0, a.d_x0, a.input.x0);
  input_.backward(stream_, a, feed.sequence);
  if (hooks.leave) hooks.leave(-1);
}

/// Makes the input of layer 0, where it has not the buffer of x0.
template <class T>
void Model<T>::first_input_forward(Activations<T>& a) {
  biases_.begin_stream(stream_, a);
  if (!a.input.first) return;
  if (config_.model.norm_gains) {
    ops::gain_forward<T>(stream_, a.input.first, a.input.x0, parameters_.vector("embedding_gain"));
  } else {
    ops::mix_forward<T>(stream_, a.input.first, mixes_.first(a));
  }
}

/// x = mix(x, skip, x0),  x += attention(norm(x)),  x += mlp(norm(x)), in place. The mix makes the first norm.
template <class T>
void Model<T>::unet_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  if (plan.attends) {
    mix_norm(block.x_out, block.attention.norm, mixes_.before(a, layer));
    attention_.forward(stream_, a, feed, block.x_out, Output::accumulate, layer);
    norm(block.mlp.norm, block.x_out, mlp_.largest_n(a, layer));
  } else {
    mix_norm(block.x_out, block.mlp.norm, mixes_.before(a, layer), mlp_.largest_n(a, layer));
  }
  mlp_.forward(stream_, a, block.x_out, Output::accumulate, layer);
}

/// a.d_x: gradient of the block's output; then of its input.
template <class T>
void Model<T>::unet_block_backward(Activations<T>& a, const Feed<T>& feed, Output d_matrices, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  ops::NormGradient<T> d_norm = through(block.mlp.norm, a.d_mlp_norm);
  mlp_.backward(stream_, a, {a.d_x}, d_matrices, layer);
  if (plan.attends) {
    norm_backward(a.d_x, Output::accumulate, d_norm);
    attention_.backward(stream_, a, feed, {a.d_x}, d_matrices, layer);
    d_norm = through(block.attention.norm, block.attention.d_norm);
  }
  ops::MixBackward<T> d = d_before(a, plan);
  d.norm = d_norm;
  ops::mix_backward<T>(stream_, d, mixes_.before(a, layer));
}

/// x = mix(x, skip, x0, second stream),  x = mix(x, attention(norm(x))),  x += mlp(norm(x)). The first x is kept as its
/// norm; the second is a new buffer, which the MLP updates in place.
template <class T>
void Model<T>::before_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  if (plan.attends) {
    mix_norm({}, block.attention.norm, mixes_.before(a, layer));
    attention_.forward(stream_, a, feed, block.attention_out, Output::overwrite, layer);
    mix_norm(block.x_out, block.mlp.norm, mixes_.after_attention(a, layer), mlp_.largest_n(a, layer));
  } else {
    mix_norm(block.x_out, block.mlp.norm, mixes_.before(a, layer), mlp_.largest_n(a, layer));
  }
  mlp_.forward(stream_, a, block.x_out, Output::accumulate, layer);
}

/// a.d_x: gradient of the block's output; then of its input. mlp.d_x: gradient of what the first mix makes.
template <class T>
void Model<T>::before_block_backward(Activations<T>& a, const Feed<T>& feed, Output d_matrices, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  ops::NormGradient<T> d_norm = through(block.mlp.norm, a.d_mlp_norm);
  mlp_.backward(stream_, a, {a.d_x}, d_matrices, layer);
  if (plan.attends) {
    if (block.recomputes_attention_out) attention_.recompute_output(stream_, a, block.attention_out, layer);
    ops::mix_backward<T>(stream_, {.d_out = a.d_x, .norm = d_norm}, mixes_.after_attention(a, layer));
    attention_.backward(stream_, a, feed, {a.d_x, a.d_branch_factor.data()}, d_matrices, layer);
    d_norm = through(block.attention.norm, block.attention.d_norm);
  }
  ops::MixBackward<T> d = d_before(a, plan);
  d.norm = d_norm;
  d.g = block.mlp.d_x;
  ops::mix_backward<T>(stream_, d, mixes_.before(a, layer));
}

/// x += attention(norm(x)),  x += mlp(norm(x)), in place.
template <class T>
void Model<T>::plain_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  if (plan.attends) {
    norm(block.attention.norm, block.x_out, nullptr, a.stream_bias);
    attention_.forward(stream_, a, feed, block.x_out, Output::accumulate, layer);
    biases_.add_to_stream(stream_, a, layer, "attention_out_bias");
  }
  norm(block.mlp.norm, block.x_out, mlp_.largest_n(a, layer), a.stream_bias);
  mlp_.forward(stream_, a, block.x_out, Output::accumulate, layer);
  biases_.add_to_stream(stream_, a, layer, "mlp_out_bias");
}

/// a.d_x: gradient of the block's output; then of its input.
template <class T>
void Model<T>::plain_block_backward(Activations<T>& a, const Feed<T>& feed, Output d_matrices, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  mlp_.backward(stream_, a, {a.d_x}, d_matrices, layer);
  norm_backward(a.d_x, Output::accumulate, through(block.mlp.norm, a.d_mlp_norm));
  if (!plan.attends) return;
  attention_.backward(stream_, a, feed, {a.d_x}, d_matrices, layer);
  norm_backward(a.d_x, Output::accumulate, through(block.attention.norm, block.attention.d_norm));
}

/// x = mix(x, skip or streams of MUDD),  x = mix(x, attention(norm(x)), x0, bigram),  x = mix(x, mlp(norm(x))). Each x
/// is a new buffer.
template <class T>
void Model<T>::scaled_block_forward(Activations<T>& a, const Feed<T>& feed, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  if (plan.mixes_input) ops::mix_forward<T>(stream_, block.x_mixed, mixes_.before(a, layer));
  const Mat<T>& x = plan.mixes_input ? block.x_mixed : a.layer_input(layer);
  if (plan.attends) {
    const Mat<T>& attended = plan.attention_input == layer ? x : a.layer_input(plan.attention_input);
    if (plan.attention_norm == NormMaker::block) norm(block.attention.norm, attended);
    attention_.forward(stream_, a, feed, block.attention_out, Output::overwrite, layer);
    mix_norm({}, block.mlp.norm, mixes_.after_attention(a, layer), mlp_.largest_n(a, layer));
  } else {
    norm(block.mlp.norm, x, mlp_.largest_n(a, layer));
  }
  mlp_.forward(stream_, a, block.mlp_out, Output::overwrite, layer);
  if (plan.norms_next) {
    mix_norm(block.x_out, a.block[layer + 1].attention.norm, mixes_.after_mlp(a, layer));
  } else {
    ops::mix_forward<T>(stream_, block.x_out, mixes_.after_mlp(a, layer));
  }
}

/// Backward pass of a block. The gradient of its output is `d_out`, or a.d_x if `d_out` is empty. The gradient of its
/// input is the result, or a.d_x if the result is empty.
template <class T>
ops::ScaledGradient<T> Model<T>::scaled_block_backward(Activations<T>& a, const Feed<T>& feed, Output d_matrices,
                                                       const ops::ScaledGradient<T>& d_out, const BlockPlan& plan) {
  const int layer = plan.layer;
  const BlockActivations<T>& block = a.block[layer];
  if (block.recomputes_mlp_out) mlp_.forward(stream_, a, block.mlp_out, Output::overwrite, layer);
  ops::mix_backward<T>(stream_, d_after_mlp(a, plan, d_out), mixes_.after_mlp(a, layer));
  mlp_.backward(stream_, a, d_mlp_out(a, plan), d_matrices, layer);
  if (plan.attends) {
    if (block.recomputes_attention_out) attention_.recompute_output(stream_, a, block.attention_out, layer);
    ops::mix_backward<T>(stream_, d_after_attention(a, plan, mixes_), mixes_.after_attention(a, layer));
    attention_.backward(stream_, a, feed, d_attention_out(a, plan), d_matrices, layer);
    const Mat<T>& d_attended = plan.attention_input == layer ? a.d_x : a.d_layer_input[plan.attention_input];
    if (plan.attention_norm == NormMaker::block) {
      norm_backward(d_attended, Output::accumulate, through(block.attention.norm, block.attention.d_norm));
    }
  } else {
    norm_backward(a.d_x, Output::accumulate, through(block.mlp.norm, a.d_mlp_norm));
  }
  if (plan.mixes_input) ops::mix_backward<T>(stream_, d_before(a, plan), mixes_.before(a, layer));
  if (!plan.hands_on_factor) return {};
  return {block.mlp.d_x, mixes_.attention_residual(layer)};
}

/// The norm of a last mix, or of the last block's output.
template <class T>
void Model<T>::final_norm_forward(Activations<T>& a) {
  const int layers = config_.model.layers;
  coefficients_.forward(stream_, a.coefficients, layers, a.layer_input(layers));
  if (a.plan.back().enters_last_mix) {
    mix_norm({}, a.final_norm, mixes_.last(a));
  } else {
    norm(a.final_norm, a.layer_input(layers), nullptr, a.stream_bias);
  }
}

template <class T>
void Model<T>::final_norm_backward(Activations<T>& a) {
  const int layers = config_.model.layers;
  gains_.backward(stream_, a.d_final_norm, a.final_norm.n, "final_gain");
  ops::NormGradient<T> d_norm = through(a.final_norm, a.d_final_norm);
  if (a.plan.back().enters_last_mix) {
    d_norm.is_only_path = true;
    ops::mix_backward<T>(stream_, {.d_out = a.d_x, .norm = d_norm}, mixes_.last(a));
    coefficients_.backward(stream_, a.coefficients, layers, a.d_x, a.layer_input(layers));
  } else {
    norm_backward(a.d_x, Output::overwrite, d_norm);
  }
}

/// Makes or adds to a.d_x0 and a.d_second what the mixes of a sum send them.
template <class T>
void Model<T>::injections_backward(Activations<T>& a, const InjectionSum& sum) {
  if (sum.empty()) return;
  const ops::SharedStream<T> x0{.x = a.input.x0, .d = a.d_x0, .accumulates = sum.adds_to_x0};
  const ops::SharedStream<T> second{.x = a.input.second, .d = a.d_second, .accumulates = sum.adds_to_second};
  ops::shared_streams_backward<T>(stream_, {x0, second}, mixes_.injections(a, sum));
}

/// Clears the gradients that nothing overwrites. In the other gradients, the first one that is sent replaces what is
/// there.
template <class T>
void Model<T>::clear_gradients(const Activations<T>& a) {
  for (const BlockPlan& plan : a.plan) {
    if (plan.clears_input_gradient) ops::fill<T>(stream_, elements(a.d_layer_input[plan.layer]), 0);
    if (plan.clears_row_gradient) ops::fill<T>(stream_, elements(a.d_value_rows[plan.value_table]), 0);
  }
  if (a.d_v_first) ops::fill<Gradient>(stream_, elements(a.d_v_first), 0);
  if (a.d_skip_gate) ops::fill<Gradient>(stream_, elements(a.d_skip_gate), 0);
  coefficients_.clear_gradients(stream_, a.coefficients);
}

/// `out` = norm of x + shift. `largest`: see ops::rms_norm_forward.
template <class T>
void Model<T>::norm(const NormActivations<T>& out, Mat<const T> x, acc_t<T>* largest,
                    kernels::Vec<const acc_t<T>> shift) {
  ops::rms_norm_forward<T>(stream_, out.n, out.rstd, x, config_.model.norm_eps, largest, shift);
}

template <class T>
void Model<T>::norm_backward(Mat<T> d_x, Output output, const ops::NormGradient<T>& d_norm) {
  ops::rms_norm_backward<T>(stream_, d_x, d_norm.n, d_norm.rstd, d_norm.d_n, output);
}

/// x = the mix of the terms, `out` = norm of x. Null x: the norm alone.
template <class T>
void Model<T>::mix_norm(Mat<T> x, const NormActivations<T>& out, const MixTerms<T>& terms, acc_t<T>* largest) {
  ops::mix_norm_forward<T>(stream_, x, out.n, out.rstd, terms, config_.model.norm_eps, largest);
}

NANORUN_INSTANTIATE(class Model);

}  // namespace nanorun
