#include "src/model/mlp_scales.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::Stream;

namespace {

constexpr double margin_h = 1.8, margin_w_out = 1.12;
constexpr long last_step_undelayed = 16;
/// Magnitude of h that the first step assumes: its scale is 1.
constexpr double first_h = 448 / margin_h;

}  // namespace

template <class T>
MlpScales<T>::MlpScales(const Config& config, Mode mode, Stream stream)
    : stream_(stream),
      layers_(mode == Mode::training && config.train.mlp_precision == MlpPrecision::fp8 ? config.model.layers : 0),
      maxima_(rows * layers_),
      host_(std::max<std::size_t>(layers_, 1) * sizeof(Maximum)) {
  restore(0, {});
}

template <class T>
void MlpScales<T>::begin_sequence(long step) {
  if (!*this) return;
  first_ = step != step_;
  if (!first_) {
    ops::fill<Maximum>(stream_, row(n_row), 0);
    return;
  }
  delayed_ = step > last_step_undelayed && step_ == step - 1;
  step_ = step;
  ops::fill<Maximum>(stream_, adjacent_rows(step % 2 == 0 ? w_out_even_row : n_row, 3), 0);
}

template <class T>
void MlpScales<T>::measure(int first, std::span<const Matrices> layers) {
  if (!first_) return;
  std::vector<ops::Magnitude<T>> magnitudes;
  for (int layer = first; const Matrices& matrices : layers) {
    magnitudes.push_back({&row(w_in_row)[layer], matrices.w_in});
    magnitudes.push_back({&w_out(step_)[layer++], matrices.w_out});
  }
  ops::max_magnitude<T>(stream_, magnitudes);
}

template <class T>
auto MlpScales<T>::of(int layer) const -> Layer {
  Scale scale_w_out{&w_out(step_)[layer]};
  if (delayed_) scale_w_out = {&w_out(step_ - 1)[layer], margin_w_out};
  return {{largest_n(layer)},
          {&row(w_in_row)[layer]},
          {&row(h_row)[layer], margin_h},
          scale_w_out,
          &row(found_h_row)[layer]};
}

template <class T>
void MlpScales<T>::collect() {
  if (*this) ops::take_words(stream_, host().data(), row(found_h_row).data(), host().size_bytes());
}

template <class T>
void MlpScales<T>::share(Comm& comm) {
  if (!*this) return;
  std::vector<double> largest(host().begin(), host().end());
  comm.all_reduce(std::span(largest), Reduce::max);
  upload(row(h_row), largest);
}

template <class T>
std::vector<double> MlpScales<T>::state() {
  if (!*this || step_ < 0) return {};
  std::vector<double> state = download(row(h_row));
  const std::vector<double> last = download(w_out(step_));
  state.insert(state.end(), last.begin(), last.end());
  return state;
}

template <class T>
bool MlpScales<T>::restore(long step, std::span<const double> state) {
  if (!*this) return true;
  ops::fill<Maximum>(stream_, row(found_h_row), 0);
  if (state.empty()) {
    step_ = -1;
    ops::fill<Maximum>(stream_, row(h_row), first_h);
    return true;
  }
  if (state.size() != 2 * layers_) return false;
  step_ = step - 1;
  upload(row(h_row), state.first(layers_));
  ops::synchronize(stream_);
  upload(w_out(step_), state.last(layers_));
  ops::synchronize(stream_);
  return true;
}

template <class T>
void MlpScales<T>::upload(std::span<Maximum> to, std::span<const double> values) {
  std::ranges::transform(values, host().begin(), [](double value) { return static_cast<Maximum>(value); });
  ops::send_words(stream_, to.data(), host().data(), to.size_bytes());
}

template <class T>
std::vector<double> MlpScales<T>::download(std::span<const Maximum> from) {
  ops::copy_to_host(stream_, host().data(), from.data(), from.size_bytes());
  ops::synchronize(stream_);
  return {host().begin(), host().end()};
}

NANORUN_INSTANTIATE(class MlpScales);

}  // namespace nanorun
