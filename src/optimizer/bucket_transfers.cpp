#include "src/optimizer/bucket_transfers.hpp"

#include <array>
#include <numeric>

#include "src/base/instantiate.hpp"

namespace nanorun {

namespace {

constexpr std::array gather_order{Level::between, Level::inside};

}  // namespace

template <class T>
BucketTransfers<T>::BucketTransfers(std::size_t buckets, const Weights<T>& weights, TensorComm& comm,
                                    const TouchedRows& rows, kernels::Stream compute)
    : weights_(weights), comm_(comm), rows_(rows), compute_(compute), events_(buckets) {}

template <class T>
BucketTransfers<T>::~BucketTransfers() {
  for (Events& events : events_) {
    ops::destroy_event(events.reduced);
    ops::destroy_event(events.gathered);
  }
  ops::destroy_event(numbers_gathered_);
  ops::destroy_event(handed_over_);
}

template <class T>
void BucketTransfers<T>::reduce_scatter(Trace& trace, const OwnedBucket<T>& owned) {
  constexpr std::array order{Level::inside, Level::between};
  transfer(trace, Phase::reduce_gradients, order, events_[owned.index].reduced, [&](Level level) {
    const Bucket& bucket = owned.bucket;
    if (rows_.known(bucket)) {
      const kernels::Mat<kernels::acc_t<T>> table(owned.all_gradients.wide.data(), static_cast<int>(bucket.units),
                                                  static_cast<int>(bucket.unit_size));
      comm_.reduce_scatter_rows(level, table, rows_.of(bucket));
    } else {
      owned.all_gradients.visit([&](auto all) { comm_.reduce_scatter(level, all, owned.bounds); });
      owned.round_gradients(comm_.stream());
    }
  });
}

template <class T>
void BucketTransfers<T>::await_gradients(Trace& trace, const OwnedBucket<T>& owned) {
  await(trace, Phase::reduce_gradients, events_[owned.index].reduced);
}

template <class T>
void BucketTransfers<T>::all_gather(Trace& trace, const OwnedBucket<T>& owned) {
  weights_.note_written(owned.index);
  transfer(trace, Phase::gather_weights, gather_order, events_[owned.index].gathered,
           [&](Level level) { gather(level, owned); });
}

template <class T>
void BucketTransfers<T>::all_gather_numbers(Trace& trace, std::span<double> of_parts) {
  Bounds bounds(of_parts.size() + 1);
  std::iota(bounds.begin(), bounds.end(), std::size_t{0});
  transfer(trace, Phase::reduce_gradients, gather_order, numbers_gathered_,
           [&](Level level) { comm_.all_gather(level, of_parts, bounds); });
  await(trace, Phase::reduce_gradients, numbers_gathered_);
}

template <class T>
void BucketTransfers<T>::await_weights(Trace& trace, const OwnedBucket<T>& owned) {
  await(trace, Phase::gather_weights, events_[owned.index].gathered);
}

template <class T>
void BucketTransfers<T>::all_gather_now(const std::vector<OwnedBucket<T>>& buckets) {
  weights_.note_replaced();
  if (comm_.size() == 1) return;
  for (const OwnedBucket<T>& owned : buckets) {
    for (const Level level : gather_order) gather(level, owned);
  }
  comm_.synchronize();
}

/// Enqueues a collective behind the ops enqueued so far, level by level, and records `done` behind it.
template <class T>
template <class Collective>
void BucketTransfers<T>::transfer(Trace& trace, Phase phase, std::span<const Level> order, ops::Event& done,
                                  const Collective& collective) {
  if (comm_.size() == 1) return;
  Region region(trace, phase);
  ops::record(compute_, handed_over_);
  ops::wait(comm_.stream(), handed_over_);
  for (const Level level : order) {
    if (!comm_.has(level)) continue;
    Transfer transfer(trace, phase, comm_.stream(), level);
    collective(level);
  }
  ops::record(comm_.stream(), done);
}

template <class T>
void BucketTransfers<T>::await(Trace& trace, Phase phase, const ops::Event& done) {
  if (comm_.size() == 1) return;
  Region region(trace, phase);
  ops::wait(compute_, done);
}

template <class T>
void BucketTransfers<T>::gather(Level level, const OwnedBucket<T>& owned) {
  if (owned.bucket.scalars()) {
    comm_.all_gather(level, owned.all_scalars, owned.bounds);
  } else {
    comm_.all_gather(level, owned.all_weights, owned.bounds);
  }
}

NANORUN_INSTANTIATE(class BucketTransfers);

}  // namespace nanorun
