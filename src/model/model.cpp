#include "src/model/model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <type_traits>

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;
using kernels::Token;
using kernels::WorkspaceAllocator;

namespace {

int max_sequence(const Config& config, bool trains) {
  return trains ? std::max(longest_length(config), config.validation.length) : config.validation.length;
}

/// Lengths of training sequences, ascending.
std::set<int> training_lengths(const Config& config) {
  std::set<int> lengths;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    lengths.insert(length_at(config, stage_steps(config, stage).first));
  }
  return lengths;
}

kernels::LmHeadOptions lm_head_options(const Config& config) {
  kernels::LmHeadOptions options;
  options.softcap = config.model.softcap;
  options.kind = config.model.softcap_kind;
  options.softcap_shift = config.model.softcap_shift;
  options.softcap_width = config.model.softcap_width;
  options.precision = head_precision(config);
  options.scale_x = config.head.scale_x;
  options.scale_w = config.head.scale_w;
  options.scale_g = config.head.scale_g;
  options.loss_scale = config.train.loss == LossSum::sum ? 1 : 0;
  return options;
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
  if (trains) Activations<T>(config, longest_length(config), true, training);
  Activations<T>(config, config.validation.length, false, validation);
  return std::max(training.used(), validation.used());
}

}  // namespace

template <class T>
Model<T>::Model(const Config& config, const ParameterTable& table, const Weights<T>& weights,
                std::span<Gradient> gradients, Token end_of_text, Stream compute, Stream upload)
    : config_(config),
      parameters_{{table, weights.tensors().data(), weights.scalars().data()}, {}},
      stream_(compute),
      head_(nanorun::lm_head_options(config)),
      validation_uploader_(config.validation.length, config, end_of_text, upload),
      loss_(compute),
      mlp_scales_(config, !gradients.empty(), compute),
      rotary_(config, max_sequence(config, !gradients.empty()), compute),
      arena_(activation_bytes<T>(config, !gradients.empty()), "the activations",
             "lower train.length (with stages stage.N.length) or validation.length, or set train.recompute = \"mlp\""),
      branches_(config.model, parameters_, weights),
      coefficients_(config.model, bind_gradients(table, gradients)),
      mixes_(config.model, parameters_, coefficients_),
      values_(config.model, parameters_, coefficients_, mixes_),
      heads_(config.model, parameters_, coefficients_),
      input_(config.model, parameters_),
      attention_(config, parameters_, heads_, values_),
      mlp_(config, parameters_, mlp_scales_) {
  WorkspaceAllocator validation(arena_.space());
  validation_ = Activations<T>(config, config.validation.length, false, validation);
  if (gradients.empty()) return;
  training_uploader_.emplace(longest_length(config), config, end_of_text, upload);
  for (const int length : training_lengths(config)) {
    WorkspaceAllocator training(arena_.space());
    training_.emplace_back(config, length, true, training);
  }
}

/// Completes parameters_ for a model that trains.
template <class T>
const Parameters<T>& Model<T>::bind_gradients(const ParameterTable& table, std::span<Gradient> gradients) {
  if (gradients.empty()) return parameters_;
  parameters_.gradients = {table, gradients.data(), gradients.data() + table.gradient_at(table.tensor_size())};
  const Mat<Gradient> head = parameters_.gradient("head");
  d_others_ = gradients.subspan(head.data + head.size() - gradients.data());
  return parameters_;
}

template <class T>
void Model<T>::set_prefixes(std::span<const std::int32_t> prefixes) {
  prefixes_ = TensorArena<std::int32_t>(prefixes.size(), "the prefixes of tokens");
  ops::copy_to_device(stream_, prefixes_.data(), prefixes.data(), prefixes.size_bytes());
  ops::synchronize(stream_);
}

template <class T>
std::size_t Model<T>::idle_bytes(const Config& config) {
  return activation_bytes<T>(config, true);
}

template <class T>
std::size_t Model<T>::memory_bytes(const Config& config) {
  return idle_bytes(config) + RotaryTable<T>::bytes(config, max_sequence(config, true));
}

template <class T>
DeviceSequence Model<T>::upload(Trace& trace, const Sequence& sequence, Windows windows) {
  return training_uploader_->load(trace, stream_, sequence, windows);
}

template <class T>
Feed<T> Model<T>::feed(const DeviceSequence& sequence, int stage) {
  rotary_.set_stage(stage);
  const int length = static_cast<int>(sequence.tokens.size());
  return {sequence, rotary_.rotary(length), rotary_.paired_rotary(length), rotary_.attention_scale()};
}

template <class T>
Activations<T>& Model<T>::training_for(const DeviceSequence& sequence) {
  const auto length = static_cast<int>(sequence.tokens.size());
  return *std::ranges::find(training_, length, &Activations<T>::length);
}

template <class T>
kernels::LmHeadOptions Model<T>::lm_head_options(long step) const {
  const Targets targets = targets_at(config_, step);
  kernels::LmHeadOptions options = head_;
  options.target_weights = targets.weights;
  options.targets = targets.count;
  options.prefix_weight = targets.prefix_weight;
  if (targets.prefix_weight > 0) options.prefix = prefixes_.span();
  return options;
}

template <class T>
void Model<T>::forward_backward(Trace& trace, const DeviceSequence& sequence, long step, Accumulate accumulate,
                                const LayerHooks& hooks) {
  Activations<T>& a = training_for(sequence);
  const Feed<T> feed = this->feed(sequence, stage_of(config_, step));
  mlp_scales_.begin_sequence(step);
  {
    Region region(trace, Phase::forward);
    forward(a, feed, hooks);
  }
  branches_.mark(stream_, a);
  {
    Region region(trace, Phase::head);
    if (!accumulate.others && !accumulate.cleared) ops::fill<Gradient>(stream_, d_others_, 0);
    if (hooks.enter) hooks.enter(config_.model.layers);
    ops::lm_head_loss_backward<T>(stream_, loss_.device(), a.d_narrow, parameters_.gradient("head"), accumulate.others,
                                  a.n_final, parameters_.weight("head"), sequence.targets, lm_head_options(step),
                                  a.workspace);
  }
  if (hooks.leave) hooks.leave(config_.model.layers);
  Region region(trace, Phase::backward);
  backward(a, feed, accumulate.matrices, hooks);
  training_uploader_->release(stream_);
}

template <class T>
double Model<T>::validate(Trace& trace, const Sequence& sequence, long step) {
  Region region(trace, Phase::validation);
  const Windows windows = validation_windows(config_, step);
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, sequence, windows);
  forward(validation_, feed(fed, stage_of(config_, step)), {});
  kernels::LmHeadOptions options = head_;
  options.precision = kernels::LmHeadPrecision::working;
  ops::lm_head_loss_forward<T>(stream_, loss_.device(), validation_.n_final, parameters_.weight("head"), fed.targets,
                               options, validation_.workspace);
  validation_uploader_.release(stream_);
  loss_.collect(stream_);
  ops::synchronize(stream_);
  return loss_.value() / validation_.length;
}

template <class T>
std::vector<double> Model<T>::token_losses(Trace& trace, const Sequence& sequence, long step) {
  const Windows windows = validation_windows(config_, step);
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, sequence, windows);
  forward(validation_, feed(fed, stage_of(config_, step)), {});
  kernels::LmHeadOptions options = head_;
  options.precision = kernels::LmHeadPrecision::working;
  const TensorArena<Gradient> losses(validation_.length, "the losses");
  ops::lm_head_losses<T>(stream_, losses.span(), validation_.n_final, parameters_.weight("head"), fed.targets, options,
                         validation_.workspace);
  validation_uploader_.release(stream_);
  HostView<Gradient> host(losses.span());
  host.download(stream_);
  ops::synchronize(stream_);
  return {host.span().begin(), host.span().end()};
}

template <class T>
std::vector<double> Model<T>::next_logits(Trace& trace, std::span<const Token> tokens, long step, int last) {
  const Windows windows = validation_windows(config_, step);
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, {tokens, tokens}, windows);
  forward(validation_, feed(fed, stage_of(config_, step)), {});
  validation_uploader_.release(stream_);
  const int columns = padded_vocabulary(config_.model);
  const TensorArena<T> z(columns, "the logits");
  ops::fill<T>(stream_, z.span(), 0);
  ops::linear_add_forward<T>(stream_, Mat<T>(z.data(), 1, columns), validation_.n_final.row_block(last, 1),
                             parameters_.weight("head"));
  std::vector<T> host(columns);
  ops::copy_to_host(stream_, host.data(), z.data(), columns * sizeof(T));
  ops::synchronize(stream_);
  std::vector<double> logits(config_.model.vocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = kernels::softcap(to_double(host[i]), head_);
  return logits;
}

template <class T>
void Model<T>::forward(Activations<T>& a, const Feed<T>& feed, const LayerHooks& hooks) {
  if (hooks.enter) hooks.enter(-1);
  input_.forward(stream_, a, feed.sequence);
  coefficients_.forward(stream_, a.coefficients, -1, a.input.x0);
  if (a.input.first) ops::mix_forward<T>(stream_, a.input.first, mixes_.first(a));
  for (int i = 0; i < config_.model.layers; ++i) {
    if (hooks.enter) hooks.enter(i);
    mlp_.enter(a, i);
    coefficients_.forward(stream_, a.coefficients, i, a.x_at(i));
    if (config_.model.residual == Residual::unet) {
      unet_block_forward(a, feed, i);
    } else {
      scaled_block_forward(a, feed, i);
    }
  }
  last_forward(a);
}

/// Expects the gradient of n_final in d_narrow.
template <class T>
void Model<T>::backward(Activations<T>& a, const Feed<T>& feed, bool add, const LayerHooks& hooks) {
  const auto clear = [&](const Mat<T>& d) {
    if (d) ops::fill<T>(stream_, elements(d), 0);
  };
  const ModelConfig& model = config_.model;
  const bool unet = model.residual == Residual::unet;
  // The gradients of other streams are overwritten by what is sent to them first.
  if (!unet && !model.mudd) std::ranges::for_each(a.d_place, clear);
  if (model.value_path == ValuePath::embeddings) std::ranges::for_each(a.d_value, clear);
  if (a.d_v_first) ops::fill<Gradient>(stream_, elements(a.d_v_first), 0);
  if (a.d_skip_gate) ops::fill<Gradient>(stream_, elements(a.d_skip_gate), 0);
  coefficients_.clear_gradients(stream_, a.coefficients);

  last_backward(a);
  ops::ScaledGradient<T> d_stream;
  int shared = model.layers;  // the first layer that has its part in the gradients of shared streams
  for (int i = model.layers - 1; i >= 0; --i) {
    if (unet) {
      unet_block_backward(a, feed, add, i);
    } else {
      d_stream = scaled_block_backward(a, feed, add, d_stream, i);
      if (coefficients_.reads(i)) shared = shared_backward(a, i, shared);
      coefficients_.backward(stream_, a.coefficients, i, a.d_x, a.x_at(i));
    }
    values_.backward_table(stream_, a, feed.sequence, i);
    if (hooks.leave) hooks.leave(i);
  }
  if (unet) {
    ops::add<T>(stream_, a.d_x0, a.d_x);
  } else {
    shared_backward(a, -1, shared);
  }
  coefficients_.backward(stream_, a.coefficients, -1, a.d_x0, a.input.x0);
  input_.backward(stream_, a, feed.sequence);
  if (hooks.leave) hooks.leave(-1);
}

/// The part of layers [begin, end) in the gradients of x0 and the bigram embeddings, begin -1: and of the first mix.
/// Returns where the layers begin that have theirs.
template <class T>
int Model<T>::shared_backward(Activations<T>& a, int begin, int end) {
  const std::vector<ops::SharingMix<T>> mixes = mixes_.injections(a, begin, end);
  if (mixes.empty()) return end;
  const bool adds = !mixes_.injections(a, end, config_.model.layers).empty();
  ops::shared_streams_backward<T>(
      stream_, {{{a.input.x0, a.d_x0, adds}, {a.input.bigram, a.d_bigram, adds || config_.model.mudd}}}, mixes);
  return begin;
}

template <class T>
void Model<T>::last_forward(Activations<T>& a) {
  const int layers = config_.model.layers;
  const double eps = config_.model.norm_eps;
  coefficients_.forward(stream_, a.coefficients, layers, a.x_at(layers));
  if (a.x_final) {
    ops::mix_norm_forward<T>(stream_, a.x_final, a.n_final, a.rstd_final, mixes_.last(a), eps);
  } else {
    ops::rms_norm_forward<T>(stream_, a.n_final, a.rstd_final, a.x_at(layers), eps);
  }
}

template <class T>
void Model<T>::last_backward(Activations<T>& a) {
  if (a.x_final) {
    const int layers = config_.model.layers;
    ops::mix_backward<T>(
        stream_,
        {.d_out = a.d_x, .norm = {.n = a.n_final, .rstd = a.rstd_final, .d_n = a.d_narrow, .is_only_path = true}},
        mixes_.last(a));
    coefficients_.backward(stream_, a.coefficients, layers, a.d_x, a.x_at(layers));
  } else {
    ops::rms_norm_backward<T>(stream_, a.d_x, a.n_final, a.rstd_final, a.d_narrow, false);
  }
}

/// Without attention the norm of the mixed stream is the one that the MLP reads.
template <class T>
void Model<T>::unet_block_forward(Activations<T>& a, const Feed<T>& feed, int layer) {
  const BlockActivations<T>& s = a.block[layer];
  const double eps = config_.model.norm_eps;
  const bool attends = has_attention(config_.model, layer);
  ops::mix_norm_forward<T>(stream_, s.x, attends ? s.attention.n : s.mlp.n, attends ? s.attention.rstd : s.mlp.rstd,
                           mixes_.before(a, layer), eps, attends ? nullptr : mlp_.largest_n(a, layer));
  if (attends) {
    attention_.forward(stream_, a, feed, s.x, AttentionLayer<T>::Output::adds, layer);
    ops::rms_norm_forward<T>(stream_, s.mlp.n, s.mlp.rstd, s.x, eps, mlp_.largest_n(a, layer));
  }
  mlp_.forward(stream_, a, s.x, true, layer);
}

template <class T>
void Model<T>::unet_block_backward(Activations<T>& a, const Feed<T>& feed, bool add, int layer) {
  const BlockActivations<T>& s = a.block[layer];
  const bool attends = has_attention(config_.model, layer);
  mlp_.backward(stream_, a, {a.d_x}, add, layer);
  if (attends) {
    ops::rms_norm_backward<T>(stream_, a.d_x, s.mlp.n, s.mlp.rstd, a.d_narrow, true);
    attention_.backward(stream_, a, feed, {a.d_x}, add, layer);
  }
  const Mat<const T> n = attends ? s.attention.n : s.mlp.n;
  ops::mix_backward<T>(stream_,
                       {.d_out = a.d_x,
                        .d_elsewhere = a.d_place[layer],
                        .norm = {n, attends ? s.attention.rstd : s.mlp.rstd, a.d_narrow}},
                       mixes_.before(a, layer));
}

/// is_normed_by_mix(), in training, where layers have buffers of their own.
template <class T>
bool Model<T>::normed_ahead(const Activations<T>& a, int layer) const {
  return a.training && is_normed_by_mix(config_.model, layer);
}

template <class T>
void Model<T>::scaled_block_forward(Activations<T>& a, const Feed<T>& feed, int layer) {
  const BlockActivations<T>& s = a.block[layer];
  const double eps = config_.model.norm_eps;
  if (s.x_before) ops::mix_forward<T>(stream_, s.x_before, mixes_.before(a, layer));
  const Mat<T>& x = s.x_before ? s.x_before : a.x_at(layer);
  if (has_attention(config_.model, layer)) {
    const int source = attention_input_of(config_.model, layer);
    const bool has_norm = a.training && first_with_norm_of(config_.model, layer) != layer;
    if (!normed_ahead(a, layer) && !has_norm) {
      ops::rms_norm_forward<T>(stream_, s.attention.n, s.attention.rstd, source == layer ? x : a.x_at(source), eps);
    }
    attention_.forward(stream_, a, feed, s.attention_out, AttentionLayer<T>::Output::replaces, layer);
    ops::mix_norm_forward<T>(stream_, {}, s.mlp.n, s.mlp.rstd, mixes_.after_attention(a, layer), eps,
                             mlp_.largest_n(a, layer));
  } else {
    ops::rms_norm_forward<T>(stream_, s.mlp.n, s.mlp.rstd, x, eps, mlp_.largest_n(a, layer));
  }
  mlp_.forward(stream_, a, s.mlp_out, false, layer);
  if (normed_ahead(a, layer + 1)) {
    const AttentionActivations<T>& next = a.block[layer + 1].attention;
    ops::mix_norm_forward<T>(stream_, s.x, next.n, next.rstd, mixes_.after_mlp(a, layer), eps);
  } else {
    ops::mix_forward<T>(stream_, s.x, mixes_.after_mlp(a, layer));
  }
}

/// `d_stream`: how the gradient of the block's output comes, where it does not lie in d_x. Returns the same of its
/// input.
template <class T>
ops::ScaledGradient<T> Model<T>::scaled_block_backward(Activations<T>& a, const Feed<T>& feed, bool add,
                                                       const ops::ScaledGradient<T>& d_stream, int layer) {
  const BlockActivations<T>& s = a.block[layer];
  const bool attends = has_attention(config_.model, layer);
  // Its mixes leave the gradients of their sums.
  const bool plain = injects(config_.model, layer);
  // What other layers have sent to the block's input joins in the last of these mixes.
  const Mat<T> nothing, d_input = a.d_place[layer];
  ops::NormGradient<T> norm;
  if (normed_ahead(a, layer + 1)) {
    const AttentionActivations<T>& next = a.block[layer + 1].attention;
    norm = {next.n, next.rstd, next.d_n};
  }
  if (s.mlp_is_read) mlp_.forward(stream_, a, s.mlp_out, false, layer);
  ops::mix_backward<T>(
      stream_,
      {.d_out = a.d_x, .d_elsewhere = attends || s.x_before ? nothing : d_input, .norm = norm, .scaled_d_in = d_stream},
      mixes_.after_mlp(a, layer));
  const BranchGradient<T> elsewhere{a.d_branch};
  const kernels::acc_t<T>* const factor = a.d_branch_factor.data();
  mlp_.backward(stream_, a, plain ? BranchGradient<T>{a.d_x, factor} : elsewhere, add, layer);
  if (attends) {
    ops::MixBackward<T> d{
        .d_out = a.d_x, .d_elsewhere = s.x_before ? nothing : d_input, .norm = {s.mlp.n, s.mlp.rstd, a.d_narrow}};
    if (plain) {
      d.scaled_d_in = {a.d_x, mixes_.mlp_residual(layer)};
      d.g = s.mlp.n;
    }
    if (s.attention_is_read) attention_.output_again(stream_, a, s.attention_out, layer);
    ops::mix_backward<T>(stream_, d, mixes_.after_attention(a, layer));
    attention_.backward(stream_, a, feed, plain ? BranchGradient<T>{s.mlp.n, factor} : elsewhere, add, layer);
    // Layers that share a norm leave its gradient to the lowest of them.
    const int source = attention_input_of(config_.model, layer);
    if (!normed_ahead(a, layer) && first_with_norm_of(config_.model, layer) == layer) {
      ops::rms_norm_backward<T>(stream_, source == layer ? a.d_x : a.d_place[source], s.attention.n, s.attention.rstd,
                                s.attention.d_n, true);
    }
  } else {
    ops::rms_norm_backward<T>(stream_, a.d_x, s.mlp.n, s.mlp.rstd, a.d_narrow, true);
  }
  if (s.x_before) {
    ops::mix_backward<T>(stream_, {.d_out = a.d_x, .d_elsewhere = d_input}, mixes_.before(a, layer));
  }
  if (!s.hands_on_factor) return {};
  return {s.mlp.n, mixes_.attention_residual(layer)};
}

NANORUN_INSTANTIATE(class Model);

double flops_per_sequence(const Config& config, const ParameterTable& table, long step) {
  const ModelConfig& model = config.model;
  const double tokens = length_at(config, step);
  const Windows windows = windows_at(config, step);
  double weights = 0;
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::matrix || p.group == Group::head) weights += static_cast<double>(p.size());
  }
  double attention = 0;
  for (int i = 0; i < model.layers; ++i) {
    if (!has_attention(model, i)) continue;
    // Paired heads are half as many, of twice the rows.
    const int pairing = names(model.paired_layers, i) ? 2 : 1;
    const double rows = pairing * tokens;
    const double reach =
        std::min<double>(rows, is_long_layer(config.window, i) ? windows.long_tokens : windows.short_tokens);
    const double pairs = reach * (rows - reach / 2);
    attention += 14 * pairs * model.width / pairing;  // 2 GEMMs forward, 5 backward
  }
  return 6 * weights * tokens + attention;
}

}  // namespace nanorun
