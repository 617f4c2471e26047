#include "src/model/rotary_table.hpp"

#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;

namespace {

/// Paired heads have two rows a token.
int rows_of(const Config& config, int length) { return config.model.paired_layers.empty() ? length : 2 * length; }

}  // namespace

template <class T>
RotaryTable<T>::RotaryTable(const Config& config, int length, Stream stream)
    : config_(config),
      stream_(stream),
      rows_(rows_of(config, length)),
      pairs_(config.model.head_dim / 2),
      attention_scales_(config.model.layers),
      frequencies_(pairs_),
      table_(bytes(config, length) / sizeof(Real), "the rotary table",
             "lower train.length (with stages stage.N.length) or validation.length") {}

template <class T>
std::size_t RotaryTable<T>::bytes(const Config& config, int length) {
  return static_cast<std::size_t>(rows_of(config, length)) * config.model.head_dim * sizeof(Real);
}

template <class T>
void RotaryTable<T>::set_stage(int stage) {
  if (stage == stage_) return;
  const RotaryStage rotary = rotary_stage(config_, stage);
  for (int layer = 0; layer < config_.model.layers; ++layer) {
    const bool attends = has_attention(config_.model, layer);
    attention_scales_[layer] = attends ? static_cast<Real>(attention_scale(config_.model, rotary, layer)) : 0;
  }
  const bool same = stage_ >= 0 && rotary.frequencies == rotary_stage(config_, stage_).frequencies;
  stage_ = stage;
  if (same) return;
  ops::copy_to_device(stream_, frequencies_.data(), rotary.frequencies.data(), pairs_ * sizeof(double));
  const std::size_t half = table_.size() / 2;
  ops::rotary_table<Real>(stream_, Mat<Real>(table_.data(), rows_, pairs_),
                          Mat<Real>(table_.data() + half, rows_, pairs_), frequencies_.span());
  ops::synchronize(stream_);
}

template <class T>
ops::Rotary<T> RotaryTable<T>::rows(int count) const {
  const std::size_t half = table_.size() / 2;
  ops::Rotary<T> rotary;
  rotary.heads = config_.model.heads;
  rotary.cos = Mat<const Real>(table_.data(), count, pairs_);
  rotary.sin = Mat<const Real>(table_.data() + half, count, pairs_);
  return rotary;
}

template <class T>
ops::Rotary<T> RotaryTable<T>::rotary(int length) const {
  return rows(length);
}

template <class T>
ops::Rotary<T> RotaryTable<T>::paired_rotary(int length) const {
  if (rows_ < 2 * length) return {};
  ops::Rotary<T> rotary = rows(2 * length);
  rotary.paired = true;
  return rotary;
}

NANORUN_INSTANTIATE(class RotaryTable);

}  // namespace nanorun
