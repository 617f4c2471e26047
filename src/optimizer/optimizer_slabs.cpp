#include "src/optimizer/optimizer_slabs.hpp"

#include <string>

#include "src/base/instantiate.hpp"
#include "src/optimizer/stored_tensors.hpp"

namespace nanorun {

template <class T>
auto OptimizerSlabs<T>::stored(const OwnedBucket<T>& owned) const -> std::vector<Stored> {
  std::vector<Stored> all;
  all.push_back({{}, HostStateSpan<T>(owned.master)});
  for (const StateSpan<T>& elements : owned.state) all.push_back({{}, HostStateSpan<T>(elements)});
  if (!owned.rule->gradient_prefix().empty()) all.push_back({{}, HostStateSpan<T>(owned.gradients)});
  const bool outer = config_.optimizer.outer_every > 0 && !owned.bucket.fixed();
  if (outer) {
    for (const auto& kept : {owned.outer.weights, owned.outer.momentum})
      all.push_back({{}, HostStateSpan<T>(StateSpan<T>{kept})});
  }
  for (const OwnedRows& rows : owned.tensors) {
    const std::vector<StateTensor> tensors = stored_tensors(config_, *owned.rule, rows);
    for (std::size_t k = 0; k < tensors.size(); ++k) all[k].tensors.push_back(tensors[k]);
  }
  return all;
}

template <class T>
auto OptimizerSlabs<T>::stored_averages(const OwnedBucket<T>& owned) -> std::vector<StoredAverage> {
  std::vector<StoredAverage> all;
  for (const BucketAverage<T>& average : owned.averages) all.push_back({average, HostView<Master>(average.values)});
  return all;
}

template <class T>
auto OptimizerSlabs<T>::all() -> std::vector<StoredBucket>& {
  if (stored_.empty()) {
    for (const OwnedBucket<T>& owned : buckets_) stored_.push_back({stored(owned), stored_averages(owned)});
  }
  return stored_;
}

template <class T>
auto OptimizerSlabs<T>::slabs() -> std::vector<Slab<Master>> {
  std::vector<Slab<Master>> slabs;
  for (StoredBucket& bucket : all()) {
    std::vector<std::size_t> used(bucket.tensors.size());
    for (std::size_t i = 0; i < bucket.tensors.front().tensors.size(); ++i) {
      for (std::size_t k = 0; k < bucket.tensors.size(); ++k) {
        const StateTensor& tensor = bucket.tensors[k].tensors[i];
        const std::size_t size = tensor.rows.size();
        const std::span<Master> data = bucket.tensors[k].elements.span().subspan(used[k], size);
        slabs.push_back(slab_of(tensor, size == 0 ? std::span<Master>() : data));
        used[k] += size;
      }
    }
    for (StoredAverage& average : bucket.averages) {
      std::size_t taken = 0;
      for (const AveragedRows& tensor : average.average.tensors) {
        const std::size_t size = tensor.rows.size();
        const std::span<Master> data = average.values.span().subspan(taken, size);
        slabs.push_back(slab_of(average.average.row, tensor, size == 0 ? std::span<Master>() : data));
        taken += size;
      }
    }
  }
  return slabs;
}

template <class T>
void OptimizerSlabs<T>::download() {
  for (StoredBucket& bucket : all()) {
    for (Stored& stored : bucket.tensors) stored.elements.download(stream_);
    for (StoredAverage& average : bucket.averages) average.values.download(stream_);
  }
  ops::synchronize(stream_);
}

template <class T>
void OptimizerSlabs<T>::upload() {
  for (StoredBucket& bucket : all()) {
    for (Stored& stored : bucket.tensors) stored.elements.upload(stream_);
    for (StoredAverage& average : bucket.averages) average.values.upload(stream_);
  }
}

NANORUN_INSTANTIATE(class OptimizerSlabs);

}  // namespace nanorun
