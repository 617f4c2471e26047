#include "src/model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "src/schedule.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;
using kernels::Token;
using kernels::Vec;
using kernels::WorkspaceAllocator;

namespace {

int max_sequence(const Config& config, bool trains) {
  return trains ? std::max(config.train.length, config.validation.length) : config.validation.length;
}

/// Angular frequency of pair j of D/2.
double rotary_frequency(const ModelConfig& model, int j) {
  const int pairs = model.head_dim / 2;
  if (model.rotary == RotaryKind::full) return std::pow(model.rotary_base, -static_cast<double>(j) / pairs);
  const int turning = pairs / 2;
  if (j >= turning) return 0;
  return std::pow(1 / model.rotary_base, turning > 1 ? static_cast<double>(j) / (turning - 1) : 0.0);
}

/// Cosines [length, D/2], then sines [length, D/2].
template <class A>
TensorArena<A> make_rotary_table(const ModelConfig& model, int length, Stream stream) {
  const int pairs = model.head_dim / 2;
  std::vector<double> frequency(pairs);
  for (int j = 0; j < pairs; ++j) frequency[j] = rotary_frequency(model, j);
  const TensorArena<double> device_frequency(pairs);
  ops::copy_to_device(stream, device_frequency.data(), frequency.data(), pairs * sizeof(double));

  const std::size_t half = static_cast<std::size_t>(length) * pairs;
  TensorArena<A> table(2 * half, "the rotary table", "lower train.length or validation.length");
  ops::rotary_table<A>(stream, Mat<A>(table.data(), length, pairs), Mat<A>(table.data() + half, length, pairs),
                       device_frequency.span());
  ops::synchronize(stream);
  return table;
}

kernels::HeadOptions head_options(const Config& config) {
  return {config.model.softcap, head_precision(config), config.head.scale_x, config.head.scale_w, config.head.scale_g};
}

template <class T>
double to_double(T value) {
  if constexpr (std::is_same_v<T, kernels::bf16>) {
    return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
  } else {
    return value;
  }
}

template <class T>
std::size_t activation_bytes(const Config& config, bool trains) {
  WorkspaceAllocator training({}), validation({});
  if (trains) Activations<T>(config, config.train.length, true, training);
  Activations<T>(config, config.validation.length, false, validation);
  return std::max(training.used(), validation.used());
}

}  // namespace

template <class T>
Model<T>::Model(const Config& config, const ParameterTable& table, const Weights<T>& weights,
                std::span<Gradient> gradients, Token end_of_text, Stream compute, Stream upload)
    : config_(config),
      w_(bind<T>(table, config.model, weights.tensors().data(), weights.scalars().data())),
      stream_(compute),
      head_(head_options(config)),
      validation_uploader_(config.validation.length, config.window, end_of_text, upload),
      loss_(compute),
      rotary_table_(make_rotary_table<Gradient>(config.model, max_sequence(config, !gradients.empty()), compute)),
      arena_(activation_bytes<T>(config, !gradients.empty()), "the activations",
             "lower train.length or validation.length, or set train.recompute = \"mlp\"") {
  WorkspaceAllocator training(arena_.space()), validation(arena_.space());
  validation_ = Activations<T>(config, config.validation.length, false, validation);
  if (gradients.empty()) return;
  d_ = bind<Gradient>(table, config.model, gradients.data(), gradients.data() + table.tensor_size());
  d_sums_ = gradients.subspan(d_.head.data + d_.head.size() - gradients.data());
  training_uploader_.emplace(config.train.length, config.window, end_of_text, upload);
  training_ = Activations<T>(config, config.train.length, true, training);
}

template <class T>
std::size_t Model<T>::memory_bytes(const Config& config) {
  const std::size_t rotary = static_cast<std::size_t>(max_sequence(config, true)) * config.model.head_dim;
  return activation_bytes<T>(config, true) + rotary * sizeof(Gradient);
}

template <class T>
DeviceSequence Model<T>::upload(Trace& trace, const Sequence& sequence, int window) {
  return training_uploader_->load(trace, stream_, sequence, window);
}

template <class T>
void Model<T>::forward_backward(Trace& trace, const DeviceSequence& sequence, Gradients before,
                                const LayerHooks& hooks) {
  Activations<T>& a = training_;
  {
    Region region(trace, Phase::forward);
    forward(a, sequence, hooks);
  }
  {
    Region region(trace, Phase::head);
    if (before == Gradients::none) ops::fill<Gradient>(stream_, d_sums_, 0);
    if (hooks.enter) hooks.enter(config_.model.layers);
    ops::head_loss_backward<T>(stream_, loss_.device(), a.d_narrow, d_.head, before == Gradients::sums, a.n_final,
                               w_.head, sequence.targets, head_, a.workspace);
  }
  if (hooks.leave) hooks.leave(config_.model.layers);
  Region region(trace, Phase::backward);
  backward(a, sequence, before, hooks);
  training_uploader_->release(stream_);
}

template <class T>
double Model<T>::validate(Trace& trace, const Sequence& sequence, int window) {
  Region region(trace, Phase::validation);
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, sequence, window);
  forward(validation_, fed, {});
  kernels::HeadOptions options = head_;
  options.precision = kernels::HeadPrecision::working;
  ops::head_loss_forward<T>(stream_, loss_.device(), validation_.n_final, w_.head, fed.targets, options,
                            validation_.workspace);
  validation_uploader_.release(stream_);
  loss_.collect(stream_);
  ops::synchronize(stream_);
  return loss_.value() / validation_.length;
}

template <class T>
std::vector<double> Model<T>::token_losses(Trace& trace, const Sequence& sequence, int window) {
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, sequence, window);
  forward(validation_, fed, {});
  kernels::HeadOptions options = head_;
  options.precision = kernels::HeadPrecision::working;
  const TensorArena<Gradient> losses(validation_.length, "the losses");
  ops::head_losses<T>(stream_, losses.span(), validation_.n_final, w_.head, fed.targets, options,
                      validation_.workspace);
  validation_uploader_.release(stream_);
  HostView<Gradient> host(losses.span());
  host.download(stream_);
  ops::synchronize(stream_);
  return {host.span().begin(), host.span().end()};
}

template <class T>
std::vector<double> Model<T>::next_logits(Trace& trace, std::span<const Token> tokens, int window, int last) {
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, {tokens, tokens}, window);
  forward(validation_, fed, {});
  validation_uploader_.release(stream_);
  const int columns = padded_vocabulary(config_.model);
  const TensorArena<T> z(columns, "the logits");
  ops::fill<T>(stream_, z.span(), 0);
  ops::linear_add_forward<T>(stream_, Mat<T>(z.data(), 1, columns), validation_.n_final.row_block(last, 1), w_.head);
  std::vector<T> host(columns);
  ops::copy_to_host(stream_, host.data(), z.data(), columns * sizeof(T));
  ops::synchronize(stream_);
  std::vector<double> logits(config_.model.vocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = head_.softcap * std::tanh(to_double(host[i]) / head_.softcap);
  return logits;
}

template <class T>
void Model<T>::forward(Activations<T>& a, const DeviceSequence& sequence, const LayerHooks& hooks) {
  const double eps = config_.model.norm_eps;
  if (hooks.enter) hooks.enter(-1);
  ops::embedding_forward<T>(stream_, a.x0, sequence.tokens, w_.embedding);
  ops::rms_norm_forward<T>(stream_, a.x0, a.rstd0, a.x0, eps);
  for (int i = 0; i < config_.model.layers; ++i) {
    if (hooks.enter) hooks.enter(i);
    block_forward(a, sequence, i);
  }
  ops::rms_norm_forward<T>(stream_, a.n_final, a.rstd_final, a.block.back().x, eps);
}

/// Expects the gradient of n_final in d_narrow.
template <class T>
void Model<T>::backward(Activations<T>& a, const DeviceSequence& sequence, Gradients before, const LayerHooks& hooks) {
  ops::fill<T>(stream_, {a.d_x.data, a.d_x.size()}, 0);
  ops::fill<T>(stream_, {a.d_x0.data, a.d_x0.size()}, 0);
  if (a.d_v_first) ops::fill<Gradient>(stream_, {a.d_v_first.data, a.d_v_first.size()}, 0);
  ops::rms_norm_backward<T>(stream_, a.d_x, a.n_final, a.rstd_final, a.d_narrow);
  for (int i = config_.model.layers - 1; i >= 0; --i) {
    block_backward(a, sequence, before, i);
    if (hooks.leave) hooks.leave(i);
  }

  ops::add<T>(stream_, a.d_x0, a.d_x);
  ops::fill<T>(stream_, {a.d_narrow.data, a.d_narrow.size()}, 0);
  ops::rms_norm_backward<T>(stream_, a.d_narrow, a.x0, a.rstd0, a.d_x0);
  ops::embedding_backward<T>(stream_, d_.embedding, sequence.tokens, sequence.order, a.d_narrow, a.workspace);
  if (hooks.leave) hooks.leave(-1);
}

template <class T>
void Model<T>::block_forward(Activations<T>& a, const DeviceSequence& sequence, int layer) {
  BlockActivations<T>& s = a.block[layer];
  const BlockTensors<T>& w = w_.block[layer];
  const double eps = config_.model.norm_eps;
  const bool attends = has_attention(config_.model, layer);

  // Without attention the norm of the mixed stream is the one that the MLP reads.
  ops::residual_mix_norm_forward<T>(stream_, s.x, attends ? s.n_mix : s.n_mlp, attends ? s.rstd_mix : s.rstd_mlp,
                                    residual_inputs(a, layer), eps);
  if (attends) {
    ops::attention_projection_forward<T>(stream_, s.qkv, s.v_mixed, s.rstd_qk, s.n_mix, w.qkv, rotary(a),
                                         value_mix(a, sequence, layer), eps);
    ops::attention_forward<T>(stream_, s.y, s.lse, attention_inputs(a, layer), mask(sequence, layer), a.workspace);
    ops::linear_add_forward<T>(stream_, s.x, s.y, w.attention_out);
    ops::rms_norm_forward<T>(stream_, s.n_mlp, s.rstd_mlp, s.x, eps);
  }
  ops::linear_relu2_forward<T>(stream_, s.h, s.n_mlp, w.mlp_in);
  ops::linear_add_forward<T>(stream_, s.x, s.h, w.mlp_out);
}

template <class T>
void Model<T>::block_backward(Activations<T>& a, const DeviceSequence& sequence, Gradients before, int layer) {
  const BlockActivations<T>& s = a.block[layer];
  const BlockTensors<T>& w = w_.block[layer];
  const BlockTensors<Gradient>& d = d_.block[layer];
  const int width = config_.model.width;
  const bool attends = has_attention(config_.model, layer), add = before == Gradients::sums;

  if (config_.train.recompute == Recompute::mlp) ops::linear_relu2_forward<T>(stream_, s.h, s.n_mlp, w.mlp_in);
  const Mat<T> d_z = a.d_wide.col_block(0, config_.model.mlp_ratio * width);
  ops::linear_backward_weight<T>(stream_, d.mlp_out, a.d_x, s.h, add);
  ops::linear_relu2_backward<T>(stream_, d_z, a.d_x, w.mlp_out, s.h);
  ops::linear_backward_weight<T>(stream_, d.mlp_in, d_z, s.n_mlp, add);
  ops::linear_backward_input<T>(stream_, a.d_narrow, d_z, w.mlp_in);

  if (attends) {
    ops::rms_norm_backward<T>(stream_, a.d_x, s.n_mlp, s.rstd_mlp, a.d_narrow);
    const Mat<T> d_qkv = a.d_wide.col_block(0, 3 * width);
    const Mat<T> d_v = d_qkv.col_block(2 * width, width);
    ops::linear_backward_weight<T>(stream_, d.attention_out, a.d_x, s.y, add);
    ops::linear_backward_input<T>(stream_, a.d_narrow, a.d_x, w.attention_out);
    ops::attention_backward<T>(stream_, a.d_q, d_qkv.col_block(width, width), d_v, s.y, s.lse, a.d_narrow,
                               attention_inputs(a, layer), mask(sequence, layer), a.workspace);
    ops::attention_input_backward<T>(stream_, d_qkv, value_mix_gradients(a, layer), s.qkv.col_block(0, 2 * width),
                                     s.rstd_qk, s.qkv.col_block(2 * width, width), a.d_q,
                                     d_qkv.col_block(width, 2 * width), rotary(a), value_mix(a, sequence, layer));
    if (layer == 0 && a.d_v_first) ops::add<T>(stream_, d_v, a.d_v_first);
    ops::linear_backward_weight<T>(stream_, d.qkv, d_qkv, s.n_mix, add);
    ops::linear_backward_input<T>(stream_, a.d_narrow, d_qkv, w.qkv);
  }
  const ops::NormGradient<T> norm{attends ? s.n_mix : s.n_mlp, attends ? s.rstd_mix : s.rstd_mlp, a.d_narrow};
  ops::residual_mix_norm_backward<T>(stream_, residual_gradients(a, layer), norm, residual_inputs(a, layer));
}

template <class T>
ops::ResidualInputs<T> Model<T>::residual_inputs(const Activations<T>& a, int layer) const {
  const int layers = config_.model.layers;
  ops::ResidualInputs<T> in;
  in.x_prev = layer == 0 ? a.x0 : a.block[layer - 1].x;
  in.x0 = a.x0;
  in.a = w_.block[layer].residual_mix;
  if (layer >= layers / 2) {
    in.skip = a.block[layers - 1 - layer].x;
    in.s = w_.skip[layer - layers / 2];
  }
  return in;
}

template <class T>
ops::ResidualGradients<T> Model<T>::residual_gradients(const Activations<T>& a, int layer) {
  const int layers = config_.model.layers;
  ops::ResidualGradients<T> d;
  d.d_x = a.d_x;
  d.d_x0 = a.d_x0;
  d.d_a = d_.block[layer].residual_mix;
  if (layer >= layers / 2) {
    d.d_skip = a.d_skip[layers - 1 - layer];
    d.d_s = d_.skip[layer - layers / 2];
  } else if (layer > 0) {
    d.d_x_prev = a.d_skip[layer - 1];
  }
  return d;
}

template <class T>
ops::ValueMix<T> Model<T>::value_mix(const Activations<T>& a, const DeviceSequence& sequence, int layer) const {
  ops::ValueMix<T> mix;
  mix.lambda = w_.block[layer].value_mix;
  const int embedding = value_embedding_of(config_.model, layer);
  if (embedding >= 0) {
    mix.source = w_.value_embedding[embedding];
    mix.index = sequence.tokens.data();
  }
  if (config_.model.value_path == ValuePath::first) {
    mix.interpolate = true;
    mix.source = a.v_first;
  }
  return mix;
}

template <class T>
ops::ValueMixGradients<T> Model<T>::value_mix_gradients(const Activations<T>& a, int layer) {
  ops::ValueMixGradients<T> d;
  d.d_lambda = d_.block[layer].value_mix;
  const int embedding = value_embedding_of(config_.model, layer);
  if (embedding >= 0) d.d_source = d_.value_embedding[embedding];
  if (config_.model.value_path == ValuePath::first) d.d_source = a.d_v_first;
  return d;
}

template <class T>
ops::AttentionInputs<T> Model<T>::attention_inputs(const Activations<T>& a, int layer) const {
  const ModelConfig& model = config_.model;
  const Mat<T>& qkv = a.block[layer].qkv;
  const double scale = model.attention_scale > 0 ? model.attention_scale : 1 / std::sqrt(model.head_dim);
  return {qkv.col_block(0, model.width), qkv.col_block(model.width, model.width), a.block[layer].v_mixed, model.heads,
          static_cast<Gradient>(scale)};
}

template <class T>
ops::Rotary<T> Model<T>::rotary(const Activations<T>& a) const {
  const int pairs = config_.model.head_dim / 2;
  const std::size_t half = rotary_table_.size() / 2;
  return {config_.model.heads, Mat<const Gradient>(rotary_table_.data(), a.length, pairs),
          Mat<const Gradient>(rotary_table_.data() + half, a.length, pairs)};
}

template <class T>
const kernels::AttentionMask& Model<T>::mask(const DeviceSequence& sequence, int layer) const {
  return is_long_layer(config_.window, layer) ? sequence.long_mask : sequence.short_mask;
}

template class Model<Real>;
#if !NANORUN_CUDA
template class Model<double>;
#endif

double flops_per_sequence(const Config& config, const ParameterTable& table, int window) {
  const ModelConfig& model = config.model;
  const double tokens = config.train.length;
  double weights = 0;
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::matrix || p.group == Group::head) weights += static_cast<double>(p.size());
  }
  double attention = 0;
  for (int i = 0; i < model.layers; ++i) {
    if (!has_attention(model, i)) continue;
    const double reach = std::min<double>(
        config.train.length, is_long_layer(config.window, i) ? window : short_window(config.window, window));
    const double pairs = reach * (tokens - reach / 2);
    attention += 14 * pairs * model.width;  // 2 GEMMs forward, 5 backward
  }
  return 6 * weights * tokens + attention;
}

}  // namespace nanorun
