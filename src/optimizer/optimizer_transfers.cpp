// What the optimizer sends to other ranks, and awaits from them: gradients for their owners, and the owners' new
// weights.

#include "src/optimizer/optimizer.hpp"

namespace nanorun {

template <class T>
void Optimizer<T>::start_reduce_scatter(Trace& trace, int layer, long step) {
  for (OwnedBucket& owned : buckets_) {
    if (owned.bucket.layer == layer && !owned.bucket.fixed()) reduce(trace, owned);
  }
  // What is left of the backward pass behind the first block is too short for a table's gradients to arrive in.
  if (layer >= 0 && !comm_.occupies_sms()) update_tables(trace, layer + 1, step);
}

template <class T>
void Optimizer<T>::reduce(Trace& trace, OwnedBucket& owned) {
  const Bucket& bucket = owned.bucket;
  const std::span<Master> gradients = gradients_of(bucket);
  transfer(trace, Phase::reduce_gradients, owned.reduced, [&] {
    if (rows_.known(bucket)) {
      const kernels::Mat<Master> table(gradients.data(), static_cast<int>(bucket.units),
                                       static_cast<int>(bucket.unit_size));
      comm_.reduce_scatter_rows(table, rows_.of(bucket));
    } else {
      comm_.reduce_scatter(gradients, owned.bounds);
    }
  });
}

/// Enqueues a collective after the ops enqueued so far; `done` is recorded behind it.
template <class T>
template <class Collective>
void Optimizer<T>::transfer(Trace& trace, Phase phase, ops::Event& done, const Collective& collective) {
  if (comm_.size() == 1) return;
  Region region(trace, phase);
  ops::record(stream_, handed_over_);
  ops::wait(comm_.stream(), handed_over_);
  {
    Transfer transfer(trace, phase, comm_.stream());
    collective();
  }
  ops::record(comm_.stream(), done);
}

template <class T>
void Optimizer<T>::await_gradients(Trace& trace, const OwnedBucket& owned) {
  if (comm_.size() == 1) return;
  Region region(trace, Phase::reduce_gradients);
  ops::wait(stream_, owned.reduced);
}

template <class T>
void Optimizer<T>::await_weights(Trace& trace, int layer) {
  if (comm_.size() == 1) return;
  for (const OwnedBucket& owned : buckets_) {
    if (owned.bucket.layer != layer || owned.bucket.fixed()) continue;
    Region region(trace, Phase::gather_weights);
    ops::wait(stream_, owned.gathered);
  }
}

template <class T>
void Optimizer<T>::gather(Trace& trace, OwnedBucket& owned) {
  transfer(trace, Phase::gather_weights, owned.gathered, [&] { gather_weights(owned); });
}

template <class T>
void Optimizer<T>::gather_weights(const OwnedBucket& owned) {
  const Bucket& bucket = owned.bucket;
  if (bucket.scalars()) {
    const std::size_t first = bucket.offset - table_.tensor_size();
    comm_.all_gather(weights_.scalars().subspan(first, bucket.size()), owned.bounds);
  } else {
    comm_.all_gather(weights_.tensors().subspan(bucket.offset, bucket.size()), owned.bounds);
  }
}

#define NANORUN_INSTANTIATE(T)                                                           \
  template void Optimizer<T>::start_reduce_scatter(Trace&, int, long);                   \
  template void Optimizer<T>::await_gradients(Trace&, const Optimizer<T>::OwnedBucket&); \
  template void Optimizer<T>::await_weights(Trace&, int);                                \
  template void Optimizer<T>::gather(Trace&, Optimizer<T>::OwnedBucket&);                \
  template void Optimizer<T>::gather_weights(const Optimizer<T>::OwnedBucket&);
NANORUN_INSTANTIATE(Real)
#if !NANORUN_CUDA
NANORUN_INSTANTIATE(double)
#endif
#undef NANORUN_INSTANTIATE

}  // namespace nanorun
