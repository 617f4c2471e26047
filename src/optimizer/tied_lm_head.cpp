#include "src/optimizer/tied_lm_head.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"

namespace nanorun {

namespace {

/// The bucket of a table, which it has alone.
template <class T>
const OwnedBucket<T>* bucket_of(const std::vector<OwnedBucket<T>>& buckets, const Parameter& table) {
  return &*std::ranges::find(buckets, table.offset, [](const OwnedBucket<T>& owned) { return owned.bucket.offset; });
}

}  // namespace

bool ties_lm_head(const Config& config, long step) {
  const int untie_step = config.train.untie_step;
  return config.model.tied_head && (untie_step == 0 || step <= untie_step);
}

template <class T>
TiedLmHead<T>::TiedLmHead(const Config& config, const ParameterTable& table, const std::vector<OwnedBucket<T>>& buckets)
    : config_(config),
      lm_head_(bucket_of(buckets, table.find("head"))),
      embedding_(bucket_of(buckets, table.find("embedding"))) {}

template <class T>
void TiedLmHead<T>::take_gradients(kernels::Stream stream) const {
  ops::move_sum<kernels::acc_t<T>>(stream, lm_head_->gradients.wide, embedding_->gradients.wide);
}

template <class T>
void TiedLmHead<T>::copy_weights(kernels::Stream stream, long step) const {
  const auto copy = [&](const StateSpan<T>& to, const StateSpan<T>& from) {
    to.visit([&]<class E>(std::span<E> out) { ops::round_to<E, E>(stream, out, from.template as<E>()); });
  };
  copy(embedding_->master, lm_head_->master);
  if (config_.train.untie_step > 0 && step == config_.train.untie_step) {
    for (std::size_t k = 0; k < lm_head_->state.size(); ++k) copy(embedding_->state[k], lm_head_->state[k]);
  }
  embedding_->round_weights(stream);
}

NANORUN_INSTANTIATE(class TiedLmHead);

}  // namespace nanorun
