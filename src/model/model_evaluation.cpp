// Losses and logits of sequences that do not train.

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

#include "src/base/instantiate.hpp"
#include "src/model/model.hpp"

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Token;
using kernels::Vec;

namespace {

template <class T>
double to_double(T value) {
  if constexpr (std::is_same_v<T, kernels::bf16>) {
    return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
  } else {
    return value;
  }
}

/// Largest magnitudes in the tensors' memory, 0 at first.
template <class Number>
class Maxima {
 public:
  Maxima(kernels::Stream stream, int count) : values_(count, "the largest magnitudes") {
    ops::fill<Number>(stream, values_.span(), 0);
  }
  Vec<Number> device() { return values_.span(); }
  /// Waits for the device.
  std::vector<double> download(kernels::Stream stream) {
    HostView<Number> host(values_.span());
    host.download(stream);
    ops::synchronize(stream);
    return {host.span().begin(), host.span().end()};
  }

 private:
  TensorArena<Number> values_;
};

}  // namespace

template <class T>
kernels::LmHeadOptions Model<T>::evaluation_lm_head_options() const {
  kernels::LmHeadOptions options = head_;
  options.precision = kernels::LmHeadPrecision::working;
  return options;
}

/// Enqueues the forward pass, which leaves the final norm in validation_. The caller releases the sequence.
template <class T>
DeviceSequence Model<T>::forward_evaluation(Trace& trace, const Sequence& sequence, long step) {
  const DeviceSequence fed = validation_uploader_.load(trace, stream_, sequence, validation_windows(config_, step));
  forward(validation_, feed(fed, stage_of(config_, step)), {});
  return fed;
}

/// What the LM head reads behind forward_evaluation() [validation.length, d].
template <class T>
Mat<const T> Model<T>::lm_head_input() const {
  return gains_.forward(stream_, validation_, validation_.final_norm.n, "final_gain");
}

/// Raises maxima[0] and maxima[1] to the largest magnitudes of the LM head's input x and of its gradient.
template <class T>
void Model<T>::measure_lm_head(Vec<Gradient> maxima, Mat<const T> x, Vec<const Token> targets) {
  const ops::Magnitude<T> of_x{&maxima.data()[0], x};
  ops::max_magnitude<T>(stream_, {&of_x, 1});
  kernels::LmHeadOptions options = evaluation_lm_head_options();
  options.loss_scale = 1;
  ops::lm_head_largest_gradient<T>(stream_, &maxima.data()[1], x, parameters_.weight("head"), targets, options,
                                   validation_.workspace, lm_head_bias());
}

template <class T>
double Model<T>::validate(Trace& trace, const Sequence& sequence, long step, LmHeadMagnitudes* largest) {
  const DeviceSequence fed = forward_evaluation(trace, sequence, step);
  const Mat<const T> x = lm_head_input();
  ops::lm_head_loss_forward<T>(stream_, loss_.device(), x, parameters_.weight("head"), fed.targets,
                               evaluation_lm_head_options(), validation_.workspace, lm_head_bias());
  if (largest) {
    Maxima<Gradient> maxima(stream_, 2);
    measure_lm_head(maxima.device(), x, fed.targets);
    const std::vector<double> found = maxima.download(stream_);
    *largest = {std::max(largest->x, found[0]), std::max(largest->g, found[1])};
  }
  validation_uploader_.release(stream_);
  loss_.collect(stream_);
  ops::synchronize(stream_);
  return loss_.value() / validation_.length;
}

template <class T>
std::vector<double> Model<T>::token_losses(Trace& trace, const Sequence& sequence, long step) {
  const DeviceSequence fed = forward_evaluation(trace, sequence, step);
  const TensorArena<Gradient> losses(validation_.length, "the losses");
  ops::lm_head_losses<T>(stream_, losses.span(), lm_head_input(), parameters_.weight("head"), fed.targets,
                         evaluation_lm_head_options(), validation_.workspace, lm_head_bias());
  validation_uploader_.release(stream_);
  HostView<Gradient> host(losses.span());
  host.download(stream_);
  ops::synchronize(stream_);
  return {host.span().begin(), host.span().end()};
}

template <class T>
std::vector<double> Model<T>::next_logits(Trace& trace, std::span<const Token> tokens, long step, int last) {
  forward_evaluation(trace, {tokens, tokens}, step);
  validation_uploader_.release(stream_);
  const int columns = padded_vocabulary(config_.model);
  const TensorArena<T> z(columns, "the logits");
  ops::fill<T>(stream_, z.span(), 0);
  ops::linear_forward<T>(stream_, Mat<T>(z.data(), 1, columns), lm_head_input().row_block(last, 1),
                         parameters_.weight("head"), kernels::Output::accumulate);
  if (config_.model.head_bias) ops::add_bias<T>(stream_, Mat<T>(z.data(), 1, columns), lm_head_bias());
  std::vector<T> host(columns);
  ops::copy_to_host(stream_, host.data(), z.data(), columns * sizeof(T));
  ops::synchronize(stream_);
  std::vector<double> logits(config_.model.vocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = kernels::softcap(to_double(host[i]), head_);
  return logits;
}

template <class T>
double Model<T>::largest_lm_head_weight() {
  Maxima<Gradient> maximum(stream_, 1);
  const ops::Magnitude<T> of_w{maximum.device().data(), parameters_.weight("head")};
  ops::max_magnitude<T>(stream_, {&of_w, 1});
  return maximum.download(stream_)[0];
}

NANORUN_INSTANTIATE(class Model);

}  // namespace nanorun
