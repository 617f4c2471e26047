#include "src/model/fp8_scales.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::Stream;

namespace {

constexpr double margin_weights = 1.12;
/// In a state, what tells a matrix of zeros from one that is not known.
constexpr double least_known = 1e-30;

/// The margin of e5m2 that reaches as far as 1 does in e4m3: see Fp8Scale.
double margin_of(kernels::Fp8Format format) { return 448.0 / kernels::largest_of(format); }

/// The largest magnitude that has this scale.
double magnitude_of(double scale, double margin) { return 448 * scale / margin; }

}  // namespace

template <class T>
Fp8ProductScales<T>::Fp8ProductScales(const Config& config, Fp8Product product, Mode mode, Stream stream)
    : config_(config),
      stream_(stream),
      rules_(fp8_rules(config, product)),
      layers_(mode == Mode::training && rules_.forward ? config.model.layers : 0),
      maxima_(rows * layers_),
      factors_(layers_ > 0 ? factors : 0),
      counts_(layers_ > 0 ? fp8_counts : 0),
      host_(std::max<std::size_t>(shared_rows * layers_, 1) * sizeof(Maximum)),
      host_counts_(fp8_counts * sizeof(std::uint64_t)) {
  restore(0, {});
}

template <class T>
void Fp8ProductScales<T>::begin_sequence(long step) {
  if (!*this) return;
  if (step == step_) {
    ops::fill<Maximum>(stream_, adjacent_rows(input_now, 2), 0);
    return;
  }
  follows_last_ = step_ == step - 1 && step_ >= 0;
  step_ = step;
  ++steps_begun_;
  measured_.assign(layers_, false);
  ops::fill<Maximum>(stream_, adjacent_rows(step % 2 == 0 ? w_out_even : input_now, 4), 0);
}

template <class T>
auto Fp8ProductScales<T>::largest_input(int layer) const -> Maximum* {
  if (!*this || rules_.input.follows == Fp8Scales::fixed) return nullptr;
  return &row(rules_.input.follows == Fp8Scales::exact ? input_now : input_found)[layer];
}

template <class T>
auto Fp8ProductScales<T>::largest_d_out(int layer) const -> Maximum* {
  return rules_.d_out.follows == Fp8Scales::exact ? &row(d_out_now)[layer] : nullptr;
}

template <class T>
void Fp8ProductScales<T>::measure(int first, std::span<const Matrices> layers) {
  if (measured_[first]) {
    ops::fill<Maximum>(stream_, w_in(step_).subspan(first, layers.size()), 0);
    ops::fill<Maximum>(stream_, w_out(step_).subspan(first, layers.size()), 0);
  }
  std::fill_n(measured_.begin() + first, layers.size(), true);
  std::vector<ops::Magnitude<T>> magnitudes;
  for (int layer = first; const Matrices& matrices : layers) {
    if (matrices.w_in) magnitudes.push_back({&w_in(step_)[layer], matrices.w_in});
    if (matrices.w_out) magnitudes.push_back({&w_out(step_)[layer], matrices.w_out});
    ++layer;
  }
  ops::max_magnitude<T>(stream_, magnitudes);
}

template <class T>
auto Fp8ProductScales<T>::weight(bool delays, std::span<Maximum> now, std::span<Maximum> before, int layer) const
    -> Scale {
  if (delays && follows_last_ && step_ > rules_.last_exact_step) return {&before[layer], margin_weights};
  return {&now[layer]};
}

template <class T>
auto Fp8ProductScales<T>::of(int layer) const -> Layer {
  Layer of;
  const bool exact_input = rules_.input.follows == Fp8Scales::exact;
  of.n = {&row(exact_input ? input_now : input_set)[layer]};
  if (rules_.input.follows == Fp8Scales::delayed) of.n.margin = rules_.input.margin;
  of.w_in = weight(rules_.delays_w_in, w_in(step_), w_in(step_ + 1), layer);
  of.w_out = weight(rules_.delays_w_out, w_out(step_), w_out(step_ + 1), layer);
  of.h = {&row(hidden_set)[layer], rules_.hidden.margin};
  const double format = margin_of(rules_.gradient), unit = gradient_unit(config_, step_);
  of.d_out = {&row(d_out_now)[layer], format};
  if (rules_.d_out.follows == Fp8Scales::fixed) of.d_out = {&row(d_out_set)[layer], unit};
  of.d_hidden = {&row(d_hidden_set)[layer], format * rules_.d_hidden.margin * unit / unit_of_set_};
  of.largest_h = &row(hidden_found)[layer];
  of.largest_d_hidden = &row(d_hidden_found)[layer];
  return of;
}

template <class T>
std::uint64_t* Fp8ProductScales<T>::count(Fp8Count of, std::size_t size) {
  if (!rules_.counts) return nullptr;
  saturation_.all[static_cast<std::size_t>(of)] += static_cast<double>(size);
  return &counts_.span()[static_cast<std::size_t>(of)];
}

template <class T>
void Fp8ProductScales<T>::collect() {
  if (!*this) return;
  ops::take_words(stream_, host().data(), row(input_found).data(), host().size_bytes());
  ops::take_words(stream_, host_counts().data(), counts_.data(), host_counts().size_bytes());
}

/// In the order of the shared rows.
template <class T>
const Fp8Rule& Fp8ProductScales<T>::shared_rule(int index) const {
  return index == 0 ? rules_.input : index == 1 ? rules_.hidden : rules_.d_hidden;
}

template <class T>
void Fp8ProductScales<T>::share(Comm& comm) {
  if (!*this) return;
  for (std::size_t i = 0; i < fp8_counts; ++i) saturation_.saturated[i] += static_cast<double>(host_counts()[i]);
  std::vector<double> all;  // of the rows that are delayed
  for (int index = 0; index < shared_rows; ++index) {
    if (shared_rule(index).follows != Fp8Scales::delayed) continue;
    const auto found = host().subspan(index * layers_, layers_);
    all.insert(all.end(), found.begin(), found.end());
  }
  if (all.empty()) return;
  comm.all_reduce(std::span(all), Reduce::max);
  std::size_t at = 0;
  for (int index = 0; index < shared_rows; ++index) {
    const Fp8Rule& rule = shared_rule(index);
    if (rule.follows != Fp8Scales::delayed) continue;
    adopted_[index] = true;
    for (std::size_t i = index * layers_; i < (index + 1) * layers_; ++i) {
      const double largest = all[at++];
      if (rule.keeps_last && (largest == 0 || !std::isfinite(largest))) {
        // d_hidden_set goes on in the unit of this step.
        if (index == 2) set_[i] *= gradient_unit(config_, step_) / unit_of_set_;
      } else {
        set_[i] = largest;
      }
    }
  }
  unit_of_set_ = gradient_unit(config_, step_);
  upload(adjacent_rows(input_set, shared_rows), set_);
}

template <class T>
Fp8Saturation Fp8ProductScales<T>::take_saturation() {
  return std::exchange(saturation_, {});
}

template <class T>
bool Fp8ProductScales<T>::delays_any() const {
  const bool mlp = std::ranges::any_of(adopted_, [](bool adopted) { return adopted; });
  return mlp || rules_.delays_w_in || rules_.delays_w_out;
}

template <class T>
std::vector<double> Fp8ProductScales<T>::state() {
  if (!*this || step_ < 0 || !delays_any()) return {};
  std::vector<double> state(state_rows * layers_);
  for (int index = 0; index < shared_rows; ++index) {
    if (!adopted_[index]) continue;
    std::ranges::copy_n(set_.begin() + static_cast<std::ptrdiff_t>(index * layers_), static_cast<int>(layers_),
                        state.begin() + static_cast<std::ptrdiff_t>(index * layers_));
  }
  const auto add_weights = [&](bool delays, std::span<Maximum> maxima, std::size_t index) {
    if (!delays) return;
    std::ranges::transform(download(maxima), state.begin() + static_cast<std::ptrdiff_t>(index * layers_),
                           [](double largest) { return std::max(largest, least_known); });
  };
  add_weights(rules_.delays_w_in, w_in(step_), 3);
  add_weights(rules_.delays_w_out, w_out(step_), 4);
  return state;
}

template <class T>
bool Fp8ProductScales<T>::restore(long step, std::span<const double> state) {
  if (!*this) return true;
  if (!state.empty() && state.size() != state_rows * layers_) return false;
  ops::fill<Maximum>(stream_, adjacent_rows(input_found, shared_rows), 0);
  ops::fill<std::int32_t>(stream_, {reinterpret_cast<std::int32_t*>(counts_.data()), 2 * counts_.size()}, 0);
  saturation_ = {};
  step_ = -1;
  unit_of_set_ = 1;
  set_.assign(shared_rows * layers_, 0);
  adopted_.assign(shared_rows, false);
  const auto row_of = [&](std::size_t index) {
    const auto values = state.empty() ? state : state.subspan(index * layers_, layers_);
    return std::ranges::any_of(values, [](double x) { return x != 0; }) ? values : std::span<const double>();
  };
  for (int index = 0; index < shared_rows; ++index) {
    const Fp8Rule& rule = shared_rule(index);
    const bool fixed = rule.follows == Fp8Scales::fixed;
    const double format = index == 2 ? margin_of(rules_.gradient) : 1;
    const auto to = set_.begin() + static_cast<std::ptrdiff_t>(index * layers_);
    const std::span<const double> values = row_of(index);
    adopted_[index] = rule.follows == Fp8Scales::delayed && !values.empty();
    if (adopted_[index]) {
      std::ranges::copy(values, to);
    } else {
      std::fill_n(to, layers_, magnitude_of(rule.scale, fixed ? 1 : format * rule.margin));
    }
  }
  if (adopted_[2]) unit_of_set_ = gradient_unit(config_, step - 1);
  upload(adjacent_rows(input_set, shared_rows), set_);
  ops::fill<Maximum>(stream_, row(d_out_set), magnitude_of(rules_.d_out.scale, 1));
  const std::span<const double> w_in_before = row_of(3), w_out_before = row_of(4);
  const bool knows_weights =
      (!rules_.delays_w_in || !w_in_before.empty()) && (!rules_.delays_w_out || !w_out_before.empty());
  if (!state.empty() && knows_weights) {
    step_ = step - 1;
    ops::synchronize(stream_);
    if (!w_in_before.empty()) upload(w_in(step_), w_in_before);
    ops::synchronize(stream_);
    if (!w_out_before.empty()) upload(w_out(step_), w_out_before);
  }
  ops::synchronize(stream_);
  return true;
}

template <class T>
void Fp8ProductScales<T>::upload(std::span<Maximum> to, std::span<const double> values) {
  std::ranges::transform(values, host().begin(), [](double value) { return static_cast<Maximum>(value); });
  ops::send_words(stream_, to.data(), host().data(), to.size_bytes());
}

template <class T>
std::vector<double> Fp8ProductScales<T>::download(std::span<const Maximum> from) {
  ops::copy_to_host(stream_, host().data(), from.data(), from.size_bytes());
  ops::synchronize(stream_);
  return {host().begin(), host().begin() + static_cast<std::ptrdiff_t>(from.size())};
}

template <class T>
void Fp8ScalesOf<T>::begin_sequence(long step) {
  mlp.begin_sequence(step);
  qkv.begin_sequence(step);
}

template <class T>
void Fp8ScalesOf<T>::collect() {
  mlp.collect();
  qkv.collect();
}

template <class T>
void Fp8ScalesOf<T>::share(Comm& comm) {
  mlp.share(comm);
  qkv.share(comm);
}

template <class T>
std::vector<double> Fp8ScalesOf<T>::state() {
  std::vector<double> first = mlp.state(), second = qkv.state();
  if (first.empty() && second.empty()) return {};
  first.resize(std::max(first.size(), second.size()));
  second.resize(first.size());
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

template <class T>
bool Fp8ScalesOf<T>::restore(long step, std::span<const double> state) {
  if (state.size() % 2 != 0) return false;
  return mlp.restore(step, state.first(state.size() / 2)) && qkv.restore(step, state.last(state.size() / 2));
}

template <class T>
std::vector<double> Fp8ScalesOf<T>::two_rows(std::span<const double> state) {
  const std::size_t layers = state.size() / (2 * Fp8ProductScales<T>::state_rows);
  std::vector<double> rows;
  for (const std::size_t row : {hidden_row, w_out_row}) {
    const auto values = state.subspan(row * layers, layers);
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return rows;
}

template <class T>
std::vector<double> Fp8ScalesOf<T>::state_of(std::span<const double> two_rows) {
  const std::size_t layers = two_rows.size() / 2;
  std::vector<double> state(2 * Fp8ProductScales<T>::state_rows * layers);
  const auto put = [&](std::size_t row, std::span<const double> values) {
    std::ranges::copy(values, state.begin() + static_cast<std::ptrdiff_t>(row * layers));
  };
  put(hidden_row, two_rows.first(layers));
  put(w_out_row, two_rows.last(layers));
  return state;
}

NANORUN_INSTANTIATE(class Fp8ProductScales);
NANORUN_INSTANTIATE(class Fp8ScalesOf);

}  // namespace nanorun
