#include "src/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/schedule.hpp"

namespace nanorun {

using kernels::MatrixBatch;
using kernels::Stream;

namespace {

template <class T>
constexpr bool own_master = std::is_same_v<T, kernels::acc_t<T>>;

int moments(const Bucket& bucket) { return bucket.group == Group::matrix ? 1 : 2; }

/// Masters that are not the weights themselves, and moments.
template <class T>
int state_tensors(const Bucket& bucket) {
  return moments(bucket) + (own_master<T> || bucket.scalars() ? 0 : 1);
}

/// Elements of state of one rank's part of all buckets.
template <class T>
std::size_t state_size(const ParameterTable& table, int rank, int ranks) {
  std::size_t size = 0;
  for (const Bucket& bucket : table.buckets()) {
    const Bounds bounds = bucket.bounds(ranks);
    size += state_tensors<T>(bucket) * (bounds[rank + 1] - bounds[rank]);
  }
  return size;
}

/// The matrices of a bucket that a rank owns; data may be null.
template <class A>
MatrixBatch<A> batch(const Bucket& bucket, A* data, std::size_t owned_size) {
  return {data, static_cast<int>(owned_size / bucket.unit_size), bucket.rows, bucket.cols};
}

template <class A>
std::size_t workspace_size(const ParameterTable& table, int rank, int ranks) {
  std::size_t bytes = 0;
  for (const Bucket& first : table.buckets()) {
    std::vector<MatrixBatch<A>> batches;
    for (const Bucket& bucket : table.buckets()) {
      if (!alike(bucket, first)) continue;
      const Bounds bounds = bucket.bounds(ranks);
      batches.push_back(batch<A>(bucket, nullptr, bounds[rank + 1] - bounds[rank]));
    }
    if (!batches.empty()) bytes = std::max(bytes, ops::newton_schulz_workspace<A>(batches));
  }
  return bytes;
}

constexpr const char* state_remedy = "use more ranks, or lower model.width or model.layers";

}  // namespace

template <class T>
Optimizer<T>::Optimizer(const Config& config, const ParameterTable& table, const Weights<T>& weights,
                        std::span<Master> gradients, TensorComm& comm, Stream stream)
    : config_(config),
      table_(table),
      weights_(weights),
      gradients_(gradients),
      comm_(comm),
      stream_(stream),
      state_(state_size<T>(table, comm.rank(), comm.size()), "the optimizer's state", state_remedy),
      workspace_(workspace_size<Master>(table, comm.rank(), comm.size()), "Muon's scratch", state_remedy),
      squares_(stream, 2),
      handed_over_(ops::create_event()) {
  std::size_t state_used = 0;
  for (const Bucket& bucket : table.buckets()) buckets_.push_back(make_owned(bucket, state_used));
  comm_.share(weights.tensors());
  comm_.share(weights.scalars());
  // In the order in which the backward pass completes them.
  std::ranges::stable_sort(buckets_, std::greater(), [](const OwnedBucket& owned) { return owned.bucket.layer; });
  for (auto owned = buckets_.crbegin(); owned != buckets_.crend(); ++owned) {
    const auto known = [&](const Bucket& kind) { return alike(kind, owned->bucket); };
    if (owned->bucket.group == Group::matrix && std::ranges::none_of(kinds_, known)) kinds_.push_back(owned->bucket);
  }
  ops::fill<Master>(stream_, state_.span(), 0);
}

template <class T>
Optimizer<T>::~Optimizer() {
  for (OwnedBucket& owned : buckets_) ops::destroy_event(owned.reduced), ops::destroy_event(owned.gathered);
  ops::destroy_event(handed_over_);
}

template <class T>
auto Optimizer<T>::make_owned(const Bucket& bucket, std::size_t& state_used) -> OwnedBucket {
  OwnedBucket owned{bucket, bucket.bounds(comm_.size()), {}, {}, {}, {}, {}, ops::create_event(), ops::create_event()};
  const std::size_t first = bucket.offset + owned.bounds[comm_.rank()];
  const std::size_t size = owned.bounds[comm_.rank() + 1] - owned.bounds[comm_.rank()];
  const auto take = [&] {
    state_used += size;
    return state_.span().subspan(state_used - size, size);
  };
  owned.gradients = gradients_.subspan(first, size);
  if (bucket.scalars()) {
    owned.master = weights_.scalars().subspan(first - table_.tensor_size(), size);
  } else {
    owned.copy = weights_.tensors().subspan(first, size);
    if constexpr (own_master<T>) {
      owned.master = owned.copy;
    } else {
      owned.master = take();
    }
  }
  owned.moment1 = take();
  if (moments(bucket) == 2) owned.moment2 = take();
  return owned;
}

template <class T>
void Optimizer<T>::initialise(std::int64_t seed) {
  ops::fill<Master>(stream_, state_.span(), 0);
  for (const OwnedBucket& owned : buckets_) {
    const std::size_t first = owned.bucket.offset + owned.bounds[comm_.rank()];
    for (const OwnedRows& rows : table_.owned(owned.bucket, comm_.rank(), comm_.size())) {
      if (rows.row_count == 0) continue;
      const std::span<Master> values = owned.master.subspan(rows.offset - first, rows.row_count * rows.cols);
      nanorun::initialise<Master>(stream_, values, rows, seed);
    }
  }
  publish();
}

template <class T>
void Optimizer<T>::start_reduce_scatter(Trace& trace, int layer, long step) {
  for (OwnedBucket& owned : buckets_) {
    if (owned.bucket.layer == layer) reduce(trace, owned);
  }
  // What is left of the backward pass behind the first block is too short for a table's gradients to arrive in.
  if (layer >= 0 && !comm_.occupies_sms()) update_tables(trace, layer + 1, step);
}

template <class T>
void Optimizer<T>::reduce(Trace& trace, OwnedBucket& owned) {
  transfer(trace, Phase::reduce_gradients, owned.reduced,
           [&] { comm_.reduce_scatter(gradients_.subspan(owned.bucket.offset, owned.bucket.size()), owned.bounds); });
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

/// The last tables come before the last kind of matrices: their gradients, which were handed over last, arrive during
/// the kinds before it, and their new weights, which the next forward pass needs first, leave during that one.
template <class T>
void Optimizer<T>::step(Trace& trace, long step) {
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (i + 1 == kinds_.size()) update_tables(trace, -1, step);
    update_matrices(trace, kinds_[i], step);
  }
  for (auto owned = buckets_.rbegin(); owned != buckets_.rend(); ++owned) {
    if (!owned->updated) gather(trace, *owned);
    owned->updated = false;
  }
}

/// Updates the tables and scalars from a layer up that have not been yet. New weights leave in the order in which the
/// next forward pass needs them.
template <class T>
void Optimizer<T>::update_tables(Trace& trace, int lowest_layer, long step) {
  const auto due = [&](const OwnedBucket& owned) {
    return owned.bucket.group != Group::matrix && owned.bucket.layer >= lowest_layer && !owned.updated;
  };
  for (const OwnedBucket& owned : buckets_) {
    if (due(owned)) update_elements(trace, owned, step);
  }
  for (auto owned = buckets_.rbegin(); owned != buckets_.rend(); ++owned) {
    if (!due(*owned)) continue;
    gather(trace, *owned);
    owned->updated = true;
  }
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
    if (owned.bucket.layer != layer) continue;
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

/// Updates this rank's matrices alike those of the bucket, all at once.
template <class T>
void Optimizer<T>::update_matrices(Trace& trace, const Bucket& kind, long step) {
  batches_.clear();
  for (const OwnedBucket& owned : buckets_) {
    if (!alike(owned.bucket, kind)) continue;
    await_gradients(trace, owned);
    if (owned.master.empty()) continue;
    Region region(trace, Phase::muon);
    ops::nesterov_momentum<Master>(stream_, owned.gradients, owned.moment1, muon_momentum(config_.optimizer, step),
                                   1.0 / config_.train.sequences, squares_.device());
    batches_.push_back(batch(owned.bucket, owned.gradients.data(), owned.gradients.size()));
  }
  if (batches_.empty()) return;
  Region region(trace, Phase::muon);
  ops::newton_schulz<Master>(stream_, batches_, workspace_.space());
  for (const OwnedBucket& owned : buckets_) {
    if (alike(owned.bucket, kind) && !owned.master.empty()) apply_muon(owned, step);
  }
}

/// Adds the orthogonal factors of a bucket's matrices to its weights.
template <class T>
void Optimizer<T>::apply_muon(const OwnedBucket& owned, long step) {
  const Bucket& bucket = owned.bucket;
  const double shape_factor = std::sqrt(std::max(1.0, static_cast<double>(bucket.rows) / bucket.cols));
  const double lr = learning_rate(bucket.group, step);
  ops::add_scaled<T>(stream_, owned.master, owned.copy, owned.gradients, -lr * shape_factor, squares_.device() + 1);
}

template <class T>
void Optimizer<T>::update_elements(Trace& trace, const OwnedBucket& owned, long step) {
  await_gradients(trace, owned);
  if (owned.master.empty()) return;
  Region region(trace, Phase::adam);
  const OptimizerConfig& o = config_.optimizer;
  const kernels::AdamOptions options{.lr = learning_rate(owned.bucket.group, step),
                                     .beta1 = o.adam_beta1,
                                     .beta2 = o.adam_beta2,
                                     .eps = o.adam_eps,
                                     .t = step + 1,
                                     .gradient_scale = 1.0 / config_.train.sequences};
  const auto update = [&](auto copy) {
    ops::adam_update<typename decltype(copy)::value_type>(stream_, owned.master, copy, owned.moment1, owned.moment2,
                                                          owned.gradients, options, squares_.device());
  };
  if (owned.bucket.scalars()) {
    update(owned.master);
  } else {
    update(owned.copy);
  }
}

template <class T>
double Optimizer<T>::learning_rate(Group group, long step) const {
  const OptimizerConfig& o = config_.optimizer;
  const double factor = lr_factor(config_.train, step);
  switch (group) {
    case Group::matrix:
      return factor * o.muon_lr;
    case Group::embedding:
      return factor * o.lr_embedding;
    case Group::head:
      return factor * o.lr_head;
    case Group::skip:
      return factor * o.lr_skip;
    default:
      return factor * o.lr_scalar;
  }
}

template <class T>
bool Optimizer<T>::overflowed() const {
  return !(squares_.value(0) + squares_.value(1) <= std::numeric_limits<Master>::max());
}

/// Brings every rank's weights up to date with the masters.
template <class T>
void Optimizer<T>::publish() {
  for (const OwnedBucket& owned : buckets_) {
    if constexpr (!own_master<T>) {
      if (!owned.bucket.scalars()) ops::round_to<T>(stream_, owned.copy, owned.master);
    }
  }
  ops::synchronize(stream_);
  if (comm_.size() == 1) return;
  for (const OwnedBucket& owned : buckets_) gather_weights(owned);
  comm_.synchronize();
}

template <class T>
std::vector<HostView<kernels::acc_t<T>>>& Optimizer<T>::host_views() {
  if (!host_.empty()) return host_;
  for (const OwnedBucket& owned : buckets_) {
    for (const std::span<Master> tensor : {owned.master, owned.moment1, owned.moment2}) host_.emplace_back(tensor);
  }
  return host_;
}

template <class T>
auto Optimizer<T>::slabs() -> std::vector<Slab<Master>> {
  std::vector<HostView<Master>>& views = host_views();
  for (HostView<Master>& view : views) view.download(stream_);
  ops::synchronize(stream_);

  std::vector<Slab<Master>> slabs;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i].bucket;
    const std::size_t first = bucket.offset + buckets_[i].bounds[comm_.rank()];
    for (const OwnedRows& rows : table_.owned(bucket, comm_.rank(), comm_.size())) {
      const auto add = [&](const char* group, HostView<Master>& view) {
        const std::size_t size = rows.row_count * rows.cols;
        slabs.push_back({std::string(group) + rows.parameter->name, rows.total_rows, rows.cols, rows.first_row,
                         rows.row_count,
                         size == 0 ? std::span<Master>() : view.span().subspan(rows.offset - first, size)});
      };
      add("/weights/", views[3 * i]);
      if (bucket.group == Group::matrix) {
        add("/muon/momentum/", views[3 * i + 1]);
      } else {
        add("/adam/m/", views[3 * i + 1]);
        add("/adam/v/", views[3 * i + 2]);
      }
    }
  }
  return slabs;
}

template <class T>
void Optimizer<T>::restore() {
  for (HostView<Master>& view : host_views()) view.upload(stream_);
  publish();
}

template <class T>
std::size_t Optimizer<T>::state_bytes(const ParameterTable& table, int ranks) {
  std::size_t max = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    max =
        std::max(max, state_size<T>(table, rank, ranks) * sizeof(Master) + workspace_size<Master>(table, rank, ranks));
  }
  return max;
}

template class Optimizer<Real>;
#if !NANORUN_CUDA
template class Optimizer<double>;
#endif

}  // namespace nanorun
