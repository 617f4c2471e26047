// The optimizer's part of checkpoints: weights and state as slabs in host memory.

#include "src/optimizer/muon_blocks.hpp"
#include "src/optimizer/optimizer.hpp"

namespace nanorun {

template <class T>
auto Optimizer<T>::stored(const OwnedBucket& owned) const -> std::vector<Stored> {
  const auto part = [&](BucketPart name) -> Kept<T> {
    switch (name) {
      case BucketPart::master:
        return owned.master;
      case BucketPart::moment1:
        return owned.moment1;
      case BucketPart::moment2:
        return owned.moment2;
      case BucketPart::gradients:
        break;
    }
    return {owned.gradients};
  };
  std::vector<Stored> tensors;
  for (const StoredGroup& group : stored_groups(config_, owned.bucket)) tensors.push_back({part(group.part), group});
  return tensors;
}

template <class T>
std::vector<HostKept<T>>& Optimizer<T>::host_views() {
  if (!host_.empty()) return host_;
  for (const OwnedBucket& owned : buckets_) {
    for (const Stored& tensor : stored(owned)) host_.emplace_back(tensor.tensor);
  }
  return host_;
}

template <class T>
auto Optimizer<T>::slabs() -> std::vector<Slab<Master>> {
  complete_rows();
  for (HostKept<T>& view : host_views()) view.download(stream_);
  ops::synchronize(stream_);
  return slabs_to_fill();
}

template <class T>
auto Optimizer<T>::slabs_to_fill() -> std::vector<Slab<Master>> {
  std::vector<HostKept<T>>& views = host_views();
  std::vector<Slab<Master>> slabs;
  std::size_t first_view = 0;
  for (const OwnedBucket& owned : buckets_) {
    const std::vector<Stored> tensors = stored(owned);
    std::vector<std::size_t> used(tensors.size());
    for (const OwnedRows& elements : owned.rows) {
      for (std::size_t k = 0; k < tensors.size(); ++k) {
        const OwnedRows rows = tensors[k].group.lines ? line_rows(config_, elements) : elements;
        const std::size_t size = rows.row_count * rows.cols;
        const std::span<Master> data = views[first_view + k].span().subspan(used[k], size);
        slabs.push_back({tensors[k].group.name + rows.parameter->name, rows.total_rows, rows.cols, rows.first_row,
                         rows.row_count, size == 0 ? std::span<Master>() : data});
        used[k] += size;
      }
    }
    first_view += tensors.size();
  }
  return slabs;
}

template <class T>
void Optimizer<T>::restore(bool gradients_wait) {
  for (HostKept<T>& view : host_views()) view.upload(stream_);
  lazy_.restart();
  for (const OwnedBucket& owned : buckets_) round_kept(owned);
  holds_gradients_ = false;
  gradients_wait_ = gradients_wait;
  publish();
}

#define NANORUN_INSTANTIATE(T)                                                 \
  template std::vector<Slab<kernels::acc_t<T>>> Optimizer<T>::slabs();         \
  template std::vector<Slab<kernels::acc_t<T>>> Optimizer<T>::slabs_to_fill(); \
  template void Optimizer<T>::restore(bool);
NANORUN_INSTANTIATE(Real)
#if !NANORUN_CUDA
NANORUN_INSTANTIATE(double)
#endif
#undef NANORUN_INSTANTIATE

}  // namespace nanorun
