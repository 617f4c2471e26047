#include "src/optimizer/tied_head.hpp"

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

template <class T>
TiedHead<T>::TiedHead(const Config& config, const ParameterTable& table, const std::vector<OwnedBucket<T>>& buckets)
    : config_(config),
      head_(bucket_of(buckets, table.find("head"))),
      embedding_(bucket_of(buckets, table.find("embedding"))) {}

template <class T>
bool TiedHead<T>::tied(long step) const {
  return config_.model.tied_head && step <= config_.train.untie_step;
}

template <class T>
void TiedHead<T>::take_gradients(kernels::Stream stream) const {
  ops::move_sum<kernels::acc_t<T>>(stream, head_->gradients, embedding_->gradients);
}

template <class T>
void TiedHead<T>::copy_weights(kernels::Stream stream, long step) const {
  const auto copy = [&](const StateSpan<T>& to, const StateSpan<T>& from) {
    to.visit([&]<class E>(std::span<E> out) { ops::round_to<E, E>(stream, out, from.template as<E>()); });
  };
  copy(embedding_->master, head_->master);
  if (step == config_.train.untie_step) {
    for (std::size_t k = 0; k < head_->state.size(); ++k) copy(embedding_->state[k], head_->state[k]);
  }
  embedding_->round_weights(stream);
}

NANORUN_INSTANTIATE(class TiedHead);

}  // namespace nanorun
