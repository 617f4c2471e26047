#include "src/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/schedule.hpp"

namespace nanorun {

using kernels::MuonBatch;
using kernels::Stream;

namespace {

template <class T>
constexpr bool own_master = std::is_same_v<T, kernels::acc_t<T>>;

int moments(const Bucket& bucket) { return bucket.group == Group::fixed ? 0 : bucket.group == Group::matrix ? 1 : 2; }

/// Masters that are not the weights themselves, and moments.
template <class T>
int state_tensors(const Bucket& bucket) {
  return moments(bucket) + (own_master<T> || bucket.scalars() ? 0 : 1);
}

/// Elements of state of one rank's part of all buckets.
template <class T>
std::size_t state_size(const Config& config, const ParameterTable& table, int rank, int ranks) {
  std::size_t size = 0;
  for (const Bucket& bucket : table.buckets()) {
    const Bounds bounds = bucket.bounds(ranks);
    size += state_tensors<T>(bucket) * (bounds[rank + 1] - bounds[rank]);
    if (bucket.group == Group::matrix && config.optimizer.normuon_beta > 0) {
      size += line_count(blocks_of(config, table.owned(bucket, rank, ranks)));
    }
  }
  return size;
}

template <class T>
std::size_t workspace_size(const Config& config, const ParameterTable& table, int rank, int ranks) {
  std::vector<MuonBatch<T>> batches, shape;
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.group != Group::matrix) continue;
    for (const MuonBlocks& blocks : blocks_of(config, table.owned(bucket, rank, ranks))) {
      batches.push_back({blocks.count, blocks.rows, blocks.cols});
    }
  }
  std::size_t bytes = 0;
  while (!batches.empty()) {
    split_shape(batches, shape);
    bytes = std::max(bytes, ops::muon_workspace<T>(shape));
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
      state_(state_size<T>(config, table, comm.rank(), comm.size()), "the optimizer's state", state_remedy),
      workspace_(workspace_size<T>(config, table, comm.rank(), comm.size()), "Muon's scratch", state_remedy),
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
  OwnedBucket owned;
  owned.bucket = bucket;
  owned.bounds = bucket.bounds(comm_.size());
  owned.rows = table_.owned(bucket, comm_.rank(), comm_.size());
  owned.reduced = ops::create_event();
  owned.gathered = ops::create_event();
  const std::size_t first = bucket.offset + owned.bounds[comm_.rank()];
  const std::size_t size = owned.bounds[comm_.rank() + 1] - owned.bounds[comm_.rank()];
  const auto take = [&](std::size_t count) {
    state_used += count;
    return state_.span().subspan(state_used - count, count);
  };
  owned.gradients = gradients_.subspan(first, size);
  if (bucket.scalars()) {
    owned.master = weights_.scalars().subspan(first - table_.tensor_size(), size);
  } else {
    owned.copy = weights_.tensors().subspan(first, size);
    if constexpr (own_master<T>) {
      owned.master = owned.copy;
    } else {
      owned.master = take(size);
    }
  }
  if (moments(bucket) > 0) owned.moment1 = take(size);
  if (moments(bucket) > 1) owned.moment2 = take(size);
  if (bucket.group == Group::matrix) {
    owned.blocks = blocks_of(config_, owned.rows);
    if (config_.optimizer.normuon_beta > 0) owned.moment2 = take(line_count(owned.blocks));
  }
  for (const OwnedRows& rows : owned.rows) {
    const UpdateRule rule = update_rule(config_, *rows.parameter);
    const std::size_t count = rows.row_count * rows.cols;
    if (count == 0) continue;
    if (!owned.runs.empty() && owned.runs.back().rule == rule) {
      owned.runs.back().size += count;
    } else {
      owned.runs.push_back({rule, rows.offset - first, count});
    }
  }
  return owned;
}

template <class T>
void Optimizer<T>::initialise(std::int64_t seed) {
  ops::fill<Master>(stream_, state_.span(), 0);
  for (const OwnedBucket& owned : buckets_) {
    const std::size_t first = owned.bucket.offset + owned.bounds[comm_.rank()];
    for (const OwnedRows& rows : owned.rows) {
      if (rows.row_count == 0) continue;
      const std::span<Master> values = owned.master.subspan(rows.offset - first, rows.row_count * rows.cols);
      nanorun::initialise<Master>(stream_, values, rows, seed);
    }
  }
  publish();
}

template <class T>
void Optimizer<T>::warm_up(Trace& trace) {
  const long step = config_.optimizer.adam_period - 1;
  for (const Bucket& kind : kinds_) update_matrices(trace, kind, step);
  for (const OwnedBucket& owned : buckets_) {
    const Group group = owned.bucket.group;
    if (group != Group::matrix && group != Group::fixed && !owned.master.empty()) apply_adam(owned, step);
  }
  squares_.collect(stream_);
  ops::fill<Master>(stream_, state_.span(), 0);
}

template <class T>
bool Optimizer<T>::keeps_gradients(long step) const {
  return step % config_.optimizer.adam_period != 0;
}

template <class T>
void Optimizer<T>::begin_step(long step) {
  if (!keeps_gradients(step)) return;
  for (const OwnedBucket& owned : buckets_) {
    if (owned.bucket.group == Group::matrix) continue;
    const std::span<Master> all = gradients_.subspan(owned.bucket.offset, owned.bucket.size());
    const std::size_t begin = owned.bounds[comm_.rank()], end = owned.bounds[comm_.rank() + 1];
    ops::fill<Master>(stream_, all.first(begin), 0);
    ops::fill<Master>(stream_, all.subspan(end), 0);
  }
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
  // A tied head waits for the gradients of the embedding, which come last.
  const bool updates = adam_updates_at(config_.optimizer, step), shared = updates && tied(step);
  const auto due = [&](const OwnedBucket& owned) {
    return owned.bucket.group != Group::matrix && owned.bucket.layer >= lowest_layer && !owned.updated &&
           !(shared && lowest_layer >= 0 && owned.bucket.group == Group::head);
  };
  if (shared && lowest_layer < 0) take_tied_gradients(trace);
  for (const OwnedBucket& owned : buckets_) {
    if (due(owned)) update_elements(trace, owned, step);
  }
  if (shared && lowest_layer < 0) copy_tied_weights(step);
  for (auto owned = buckets_.rbegin(); owned != buckets_.rend(); ++owned) {
    if (!due(*owned)) continue;
    if (updates) gather(trace, *owned);
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

/// Updates this rank's matrices alike those of the bucket, the blocks of one shape at once: only many of them fill a
/// device.
template <class T>
void Optimizer<T>::update_matrices(Trace& trace, const Bucket& kind, long step) {
  batches_.clear();
  for (const OwnedBucket& owned : buckets_) {
    if (!alike(owned.bucket, kind)) continue;
    await_gradients(trace, owned);
    add_batches(owned, step);
  }
  const OptimizerConfig& o = config_.optimizer;
  const bool express = o.orthogonalisation == Orthogonalisation::polar_express;
  const kernels::MuonOptions options{
      .iteration = express ? kernels::polar_express_iteration : kernels::newton_schulz_iteration,
      .momentum = muon_momentum(config_, step),
      .gradient_scale = 1.0 / config_.train.sequences,
      .normuon_beta = o.normuon_beta};
  Region region(trace, Phase::muon);
  while (!batches_.empty()) {
    split_shape(batches_, shape_);
    ops::muon_update<T>(stream_, shape_, options, {squares_.device(), squares_.device() + 1}, workspace_.space());
  }
}

/// Appends the blocks of a bucket to batches_.
template <class T>
void Optimizer<T>::add_batches(const OwnedBucket& owned, long step) {
  const Bucket& bucket = owned.bucket;
  const double shape_factor = std::sqrt(std::max(1.0, static_cast<double>(bucket.rows) / bucket.cols));
  const double factor = lr_factor(config_, step);
  std::size_t first = 0, first_line = 0;
  for (const MuonBlocks& blocks : owned.blocks) {
    const double lr = blocks.rule.lr * factor * shape_factor;
    batches_.push_back(
        {.count = blocks.count,
         .rows = blocks.rows,
         .cols = blocks.cols,
         .weights = owned.master.data() + first,
         .gradients = owned.gradients.data() + first,
         .momentum = owned.moment1.data() + first,
         .copy = owned.copy.data() + first,
         .second_moment = config_.optimizer.normuon_beta > 0 ? owned.moment2.data() + first_line : nullptr,
         .lr = lr,
         .decay = lr * blocks.rule.decay * config_.optimizer.muon_lr * factor});
    first += batches_.back().size();
    first_line += line_count(blocks);
  }
}

template <class T>
void Optimizer<T>::update_elements(Trace& trace, const OwnedBucket& owned, long step) {
  await_gradients(trace, owned);
  if (owned.master.empty() || owned.bucket.group == Group::fixed || !adam_updates_at(config_.optimizer, step)) return;
  if (tied(step) && &owned == &bucket_of("embedding")) return;
  Region region(trace, Phase::adam);
  apply_adam(owned, step);
}

template <class T>
void Optimizer<T>::apply_adam(const OwnedBucket& owned, long step) {
  const OptimizerConfig& o = config_.optimizer;
  const double factor = lr_factor(config_, step);
  for (const Run& run : owned.runs) {
    const double lr = run.rule.lr * factor;
    const kernels::AdamOptions options{.lr = lr,
                                       .beta1 = run.rule.beta1,
                                       .beta2 = run.rule.beta2,
                                       .eps = o.adam_eps,
                                       .t = (step + 1) / o.adam_period,
                                       .gradient_scale = 1.0 / config_.train.sequences,
                                       .decay = lr * lr * run.rule.decay,
                                       .epsilon_hat = o.adam_epsilon_hat};
    const auto part = [&](const auto& all) { return all.subspan(run.first, run.size); };
    const auto update = [&](auto copy) {
      ops::adam_update<typename decltype(copy)::value_type>(stream_, part(owned.master), part(copy),
                                                            part(owned.moment1), part(owned.moment2),
                                                            part(owned.gradients), options, squares_.device());
    };
    if (owned.bucket.scalars()) {
      update(owned.master);
    } else {
      update(owned.copy);
    }
  }
}

/// The bucket of a table.
template <class T>
auto Optimizer<T>::bucket_of(const std::string& table) -> OwnedBucket& {
  const std::size_t offset = table_.find(table).offset;
  return *std::ranges::find(buckets_, offset, [](const OwnedBucket& owned) { return owned.bucket.offset; });
}

/// Head and embedding have the same rows, of which each rank owns the same.
template <class T>
void Optimizer<T>::take_tied_gradients(Trace& trace) {
  const OwnedBucket &head = bucket_of("head"), &embedding = bucket_of("embedding");
  await_gradients(trace, head);
  await_gradients(trace, embedding);
  const auto rows = [&](std::span<Master> x) {
    return kernels::Mat<Master>(x.data(), static_cast<int>(x.size() / head.bucket.unit_size),
                                static_cast<int>(head.bucket.unit_size));
  };
  Region region(trace, Phase::adam);
  ops::add<Master>(stream_, rows(head.gradients), rows(embedding.gradients));
}

/// The embedding takes the head's weights, and with the last update that they share its state.
template <class T>
void Optimizer<T>::copy_tied_weights(long step) {
  const OwnedBucket &head = bucket_of("head"), &embedding = bucket_of("embedding");
  ops::round_to<Master>(stream_, embedding.master, head.master);
  if constexpr (!own_master<T>) ops::round_to<T>(stream_, embedding.copy, embedding.master);
  if (step != config_.train.untie_step) return;
  ops::round_to<Master>(stream_, embedding.moment1, head.moment1);
  ops::round_to<Master>(stream_, embedding.moment2, head.moment2);
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
std::size_t Optimizer<T>::state_bytes(const Config& config, const ParameterTable& table, int ranks) {
  std::size_t max = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    max = std::max(max, state_size<T>(config, table, rank, ranks) * sizeof(Master) +
                            workspace_size<T>(config, table, rank, ranks));
  }
  return max;
}

template class Optimizer<Real>;
#if !NANORUN_CUDA
template class Optimizer<double>;
#endif

}  // namespace nanorun
