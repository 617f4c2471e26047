// The construction of the model, its memory, and what it makes of a sequence before the passes.

#include <algorithm>
#include <set>

#include "src/base/instantiate.hpp"
#include "src/model/model.hpp"

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;
using kernels::Token;
using kernels::WorkspaceAllocator;

namespace {

/// What a model with these gradients is for.
template <class T>
Mode mode_of(const GradientSpans<T>& gradients) {
  return gradients.empty() ? Mode::evaluation : Mode::training;
}

int max_sequence(const Config& config, Mode mode) {
  return mode == Mode::training ? std::max(longest_length(config), config.validation.length) : config.validation.length;
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
  options.precision = lm_head_precision(config);
  options.scale_x = config.head.scale_x;
  options.scale_w = config.head.scale_w;
  options.scale_g = config.head.scale_g;
  options.loss_scale = config.train.loss == LossSum::sum ? 1 : 0;
  return options;
}

template <class T>
std::size_t activation_bytes(const Config& config, Mode mode) {
  const auto bytes = [&](int length, Mode of) {
    WorkspaceAllocator allocator({});
    Activations<T>(config, length, of, allocator);
    return allocator.used();
  };
  std::size_t most = bytes(config.validation.length, Mode::evaluation);
  if (mode == Mode::evaluation) return most;
  // A longer sequence may need less, where the softmax covers fewer columns.
  for (const int length : training_lengths(config)) most = std::max(most, bytes(length, Mode::training));
  return most;
}

}  // namespace

template <class T>
Model<T>::Model(const Config& config, const ParameterTable& table, const Weights<T>& weights,
                GradientSpans<T> gradients, Token end_of_text, Stream compute, Stream upload)
    : config_(config),
      parameters_{{table, weights.tensors().data(), weights.scalars().data()}, {}},
      stream_(compute),
      head_(nanorun::lm_head_options(config)),
      validation_uploader_(config.validation.length, config, end_of_text, upload),
      loss_(compute),
      fp8_scales_(config, mode_of(gradients), compute),
      rotary_(config, max_sequence(config, mode_of(gradients)), compute),
      arena_(activation_bytes<T>(config, mode_of(gradients)), "the activations",
             "lower train.length (with stages stage.N.length) or validation.length, or set train.recompute"),
      gains_(config.model, parameters_),
      biases_(config.model, parameters_),
      zero_branches_(parameters_, weights, mixes_),
      coefficients_(config.model, bind_gradients(table, gradients)),
      mixes_(config.model, parameters_, coefficients_),
      values_(config.model, parameters_, coefficients_, mixes_),
      heads_(config.model, parameters_, coefficients_),
      input_(config.model, parameters_),
      attention_(config, parameters_, weights, heads_, values_, fp8_scales_.qkv),
      mlp_(config, parameters_, weights, fp8_scales_.mlp) {
  WorkspaceAllocator validation(arena_.space());
  validation_ = Activations<T>(config, config.validation.length, Mode::evaluation, validation);
  if (gradients.empty()) return;
  training_uploader_.emplace(longest_length(config), config, end_of_text, upload);
  for (const int length : training_lengths(config)) {
    WorkspaceAllocator training(arena_.space());
    training_.emplace_back(config, length, Mode::training, training);
  }
}

/// Completes parameters_ for a model that trains.
template <class T>
const Parameters<T>& Model<T>::bind_gradients(const ParameterTable& table, const GradientSpans<T>& gradients) {
  if (gradients.empty()) return parameters_;
  const std::span<Gradient> wide = gradients.wide;
  const std::size_t missing = gradients.matrices.size();
  parameters_.gradients = {table, wide.data(), wide.data() + (table.gradient_at(table.tensor_size()) - missing),
                           missing};
  if (missing > 0) parameters_.rounded = {table, gradients.matrices, gradients.of_layer};
  const Mat<Gradient> head = parameters_.gradient("head");
  d_others_ = wide.subspan(head.data + head.size() - wide.data());
  return parameters_;
}

template <class T>
void Model<T>::set_prefixes(std::span<const std::int32_t> prefixes) {
  if (training_uploader_) training_uploader_->set_prefixes(prefixes);
  prefixes_ = TensorArena<std::int32_t>(prefixes.size(), "the prefixes of tokens");
  ops::copy_to_device(stream_, prefixes_.data(), prefixes.data(), prefixes.size_bytes());
  ops::synchronize(stream_);
}

template <class T>
std::size_t Model<T>::idle_bytes(const Config& config) {
  return activation_bytes<T>(config, Mode::training);
}

template <class T>
std::size_t Model<T>::memory_bytes(const Config& config) {
  return idle_bytes(config) + RotaryTable<T>::bytes(config, max_sequence(config, Mode::training)) +
         Fp8Weights<T>::bytes(config, Fp8Product::mlp) + Fp8Weights<T>::bytes(config, Fp8Product::qkv);
}

template <class T>
DeviceSequence Model<T>::upload(Trace& trace, const Sequence& sequence, Windows windows, CandidateDraw draw) {
  return training_uploader_->load(trace, stream_, sequence, windows, draw);
}

template <class T>
Feed<T> Model<T>::feed(const DeviceSequence& sequence, int stage) {
  rotary_.set_stage(stage);
  const int length = static_cast<int>(sequence.tokens.size());
  return {sequence, rotary_.rotary(length), rotary_.paired_rotary(length), rotary_.attention_scales()};
}

template <class T>
Activations<T>& Model<T>::training_for(const DeviceSequence& sequence) {
  const auto length = static_cast<int>(sequence.tokens.size());
  return *std::ranges::find(training_, length, &Activations<T>::length);
}

template <class T>
kernels::Vec<const acc_t<T>> Model<T>::lm_head_bias() const {
  if (!config_.model.head_bias) return {};
  return parameters_.vector("head_bias");
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

NANORUN_INSTANTIATE(class Model);

}  // namespace nanorun
