#include "src/optimizer/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::MuonBatch;
using kernels::Stream;

namespace {

/// Numbers of NorMuon's second moment of one rank's part of a bucket.
std::size_t normuon_lines(const Config& config, const Bucket& bucket, const std::vector<OwnedRows>& rows) {
  if (bucket.group != Group::matrix || config.optimizer.normuon_beta == 0) return 0;
  return line_count(blocks_of(config, rows));
}

/// Bytes of masters and state of one rank's part of all buckets.
template <class T>
std::size_t state_size(const Config& config, const ParameterTable& table, int rank, int ranks) {
  kernels::WorkspaceAllocator counter({});
  for (const Bucket& bucket : table.buckets()) {
    const auto rows = table.owned(bucket, rank, ranks);
    BucketState<T>(counter, config, bucket, rows, normuon_lines(config, bucket, rows));
  }
  return counter.used();
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

/// Bytes of scratch of its own, where the idle memory does not suffice.
std::size_t beyond(std::size_t idle, std::size_t scratch) { return scratch > idle ? scratch : 0; }

constexpr const char* state_remedy = "use more ranks, or lower model.width or model.layers";

}  // namespace

template <class T>
Optimizer<T>::Optimizer(const Config& config, const ParameterTable& table, const Weights<T>& weights,
                        std::span<Master> gradients, kernels::Workspace idle, TensorComm& comm, TouchedRows& rows,
                        Stream stream)
    : config_(config),
      table_(table),
      weights_(weights),
      gradients_(gradients),
      comm_(comm),
      rows_(rows),
      stream_(stream),
      state_(state_size<T>(config, table, comm.rank(), comm.size()), "the optimizer's state", state_remedy),
      own_workspace_(beyond(idle.size(), workspace_size<T>(config, table, comm.rank(), comm.size())), "Muon's scratch",
                     state_remedy),
      workspace_(own_workspace_.space().empty() ? idle : own_workspace_.space()),
      squares_(stream, 2),
      lazy_(config, stream),
      handed_over_(ops::create_event()) {
  kernels::WorkspaceAllocator allocator(state_.space());
  for (const Bucket& bucket : table.buckets()) buckets_.push_back(make_owned(bucket, allocator));
  comm_.share(weights.tensors());
  comm_.share(weights.scalars());
  // In the order in which the backward pass completes them.
  std::ranges::stable_sort(buckets_, std::greater(), [](const OwnedBucket& owned) { return owned.bucket.layer; });
  for (auto owned = buckets_.crbegin(); owned != buckets_.crend(); ++owned) {
    const auto known = [&](const Bucket& kind) { return alike(kind, owned->bucket); };
    if (owned->bucket.group == Group::matrix && std::ranges::none_of(kinds_, known)) kinds_.push_back(owned->bucket);
  }
  for (const OwnedBucket& owned : buckets_) {
    if (!LazyRows<T>::serves(config, table, owned.bucket, comm.size())) continue;
    lazy_.add(table, owned.bucket, {owned.master, owned.copy, owned.gradients, owned.moment1, owned.moment2});
  }
  clear_state();
}

template <class T>
Optimizer<T>::~Optimizer() {
  for (OwnedBucket& owned : buckets_) ops::destroy_event(owned.reduced), ops::destroy_event(owned.gathered);
  ops::destroy_event(handed_over_);
}

template <class T>
auto Optimizer<T>::make_owned(const Bucket& bucket, kernels::WorkspaceAllocator& allocator) -> OwnedBucket {
  OwnedBucket owned;
  owned.bucket = bucket;
  owned.bounds = bucket.bounds(comm_.size());
  owned.rows = table_.owned(bucket, comm_.rank(), comm_.size());
  owned.reduced = ops::create_event();
  owned.gathered = ops::create_event();
  const std::size_t first = bucket.offset + owned.bounds[comm_.rank()];
  const std::size_t size = owned.bounds[comm_.rank() + 1] - owned.bounds[comm_.rank()];
  owned.gradients = gradients_of(bucket).empty() ? std::span<Master>()
                                                 : gradients_of(bucket).subspan(owned.bounds[comm_.rank()], size);
  const BucketState<T> state(allocator, config_, bucket, owned.rows, normuon_lines(config_, bucket, owned.rows));
  owned.master = state.master, owned.moment1 = state.moment1, owned.moment2 = state.moment2;
  if (bucket.scalars()) {
    owned.master.wide = weights_.scalars().subspan(first - table_.tensor_size(), size);
  } else {
    owned.copy = weights_.tensors().subspan(first, size);
    if constexpr (Kept<T>::one_type) {
      owned.master.wide = owned.copy;
    } else if (owned.master.wide.empty()) {
      owned.master.narrow = owned.copy;
    }
  }
  if (bucket.group == Group::matrix) owned.blocks = blocks_of(config_, owned.rows);
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

/// On all ranks; none of what is fixed.
template <class T>
auto Optimizer<T>::gradients_of(const Bucket& bucket) const -> std::span<Master> {
  if (bucket.fixed()) return {};
  return gradients_.subspan(table_.gradient_at(bucket.offset), bucket.size());
}

template <class T>
void Optimizer<T>::clear_state() {
  const kernels::Workspace state = state_.space();
  ops::fill<Master>(stream_, {reinterpret_cast<Master*>(state.data()), state.size() / sizeof(Master)}, 0);
  lazy_.restart();
}

template <class T>
void Optimizer<T>::initialise(std::int64_t seed) {
  clear_state();
  for (const OwnedBucket& owned : buckets_) {
    // Initial values are formed in fp32, which the gradients have room for, as no step has begun.
    const bool lacks_room = owned.bucket.fixed() && owned.master.wide.empty();
    const TensorArena<Master> room(lacks_room ? owned.master.size() : 0, "initial values");
    const std::span<Master> all = lacks_room                  ? room.span()
                                  : owned.master.wide.empty() ? owned.gradients
                                                              : owned.master.wide;
    const std::size_t first = owned.bucket.offset + owned.bounds[comm_.rank()];
    for (const OwnedRows& rows : owned.rows) {
      if (rows.row_count == 0) continue;
      const std::span<Master> values = all.subspan(rows.offset - first, rows.row_count * rows.cols);
      nanorun::initialise<Master>(stream_, values, rows, seed);
    }
    if constexpr (!Kept<T>::one_type) {
      if (owned.master.wide.empty()) ops::round_to<T>(stream_, owned.master.narrow, all);
    }
    round_kept(owned);
    if (lacks_room) ops::synchronize(stream_);
  }
  holds_gradients_ = gradients_wait_ = false;
  publish();
}

template <class T>
void Optimizer<T>::warm_up(Trace& trace) {
  const long step = config_.optimizer.adam_period - 1;
  for (const Bucket& kind : kinds_) update_matrices(trace, kind, step);
  for (const OwnedBucket& owned : buckets_) {
    const Bucket& bucket = owned.bucket;
    if (bucket.group != Group::matrix && !bucket.fixed() && owned.master.size() > 0) apply_adam(owned, step);
  }
  squares_.collect(stream_);
  clear_state();
}

template <class T>
bool Optimizer<T>::keeps_gradients(long step) const {
  return gradients_wait_ || step % config_.optimizer.adam_period != 0;
}

template <class T>
void Optimizer<T>::begin_step(long step) {
  const bool keeps = keeps_gradients(step), begins = !holds_gradients_ && !gradients_wait_;
  rows_.upload(comm_.stream());
  for (const OwnedBucket& owned : buckets_) {
    if (begins || leaves_others(owned.bucket, keeps)) clear_gradients(owned, begins);
  }
  holds_gradients_ = true;
}

/// Whether the gradients of other ranks' parts of a bucket, which these have taken, stand where new ones are added.
template <class T>
bool Optimizer<T>::leaves_others(const Bucket& bucket, bool keeps) const {
  if (bucket.group == Group::matrix || bucket.fixed() || comm_.size() == 1) return false;
  if (rows_.known(bucket)) return !holds_gradients_;
  return keeps || (clears_gradients() && bucket.group != Group::head);
}

template <class T>
void Optimizer<T>::clear_gradients(const OwnedBucket& owned, bool own_too) {
  if (owned.bucket.group == Group::matrix || owned.bucket.fixed()) return;
  const std::span<Master> all = gradients_of(owned.bucket);
  const std::size_t begin = owned.bounds[comm_.rank()], end = owned.bounds[comm_.rank() + 1];
  ops::fill<Master>(stream_, all.first(begin), 0);
  if (own_too) ops::fill<Master>(stream_, owned.gradients, 0);
  ops::fill<Master>(stream_, all.subspan(end), 0);
}

template <class T>
void Optimizer<T>::read_rows(Trace& trace, const DeviceSequence& sequence, long step) {
  if (lazy_.empty()) return;
  Region region(trace, Phase::adam);
  lazy_.read(sequence, step);
}

template <class T>
void Optimizer<T>::complete_rows() {
  lazy_.complete();
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
    if (!owned->updated && !owned->bucket.fixed()) gather(trace, *owned);
    owned->updated = false;
  }
  if (!adam_updates_at(config_.optimizer, step)) return;
  lazy_.end_update(step);
  gradients_wait_ = false;
}

/// Updates the tables and scalars from a layer up that have not been yet. New weights leave in the order in which the
/// next forward pass needs them.
template <class T>
void Optimizer<T>::update_tables(Trace& trace, int lowest_layer, long step) {
  // A tied head waits for the gradients of the embedding, which come last.
  const bool updates = adam_updates_at(config_.optimizer, step), shared = updates && tied(step);
  const auto due = [&](const OwnedBucket& owned) {
    return owned.bucket.group != Group::matrix && !owned.bucket.fixed() && owned.bucket.layer >= lowest_layer &&
           !owned.updated && !(shared && lowest_layer >= 0 && owned.bucket.group == Group::head);
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
    ops::muon_update<T>(stream_, shape_, options, {squares_.device(), squares_.device() + 1}, workspace_);
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
         .weights = owned.master.wide.data() + first,
         .gradients = owned.gradients.data() + first,
         .momentum = owned.moment1.wide.data() + first,
         .copy = owned.copy.data() + first,
         .second_moment = config_.optimizer.normuon_beta > 0 ? owned.moment2.wide.data() + first_line : nullptr,
         .lr = lr,
         .decay = lr * blocks.rule.decay * config_.optimizer.muon_lr * factor,
         .truncates = blocks.rule.truncates});
    first += batches_.back().size();
    first_line += line_count(blocks);
  }
}

template <class T>
void Optimizer<T>::update_elements(Trace& trace, const OwnedBucket& owned, long step) {
  await_gradients(trace, owned);
  if (owned.gradients.empty() || !adam_updates_at(config_.optimizer, step)) return;
  if (tied(step) && &owned == &bucket_of("embedding")) return;
  Region region(trace, Phase::adam);
  apply_adam(owned, step);
}

template <class T>
void Optimizer<T>::apply_adam(const OwnedBucket& owned, long step) {
  if (lazy_.has(owned.bucket)) return lazy_.update(owned.bucket, step, squares_.device());
  for (const Run& run : owned.runs) {
    kernels::AdamOptions options = adam_options(config_, run.rule, step);
    options.clears_gradient = owned.bucket.group != Group::head;
    const auto part = [&](const auto& all) { return all.subspan(run.first, run.size); };
    const auto update = [&]<class C, class W, class M>(std::span<C> copy, std::span<W> w, std::span<M> m) {
      ops::adam_update<C, W, M>(stream_, part(w), part(copy), part(m), part(owned.moment2.template as<M>()),
                                part(owned.gradients), options, squares_.device());
    };
    if (owned.bucket.scalars()) {
      update(owned.master.wide, owned.master.wide, owned.moment1.wide);
    } else {
      owned.master.visit([&](auto w) { owned.moment1.visit([&](auto m) { update(owned.copy, w, m); }); });
    }
  }
}

/// Rounds to bf16 what the deck asks to and what a wider type holds of this rank's part.
template <class T>
void Optimizer<T>::round_kept(const OwnedBucket& owned) {
  const auto round = [&](const Kept<T>& kept, StateFormat format, const Run& run) {
    if (format == StateFormat::bf16 && !kept.wide.empty()) {
      ops::round_as_bf16<Master>(stream_, kept.wide.subspan(run.first, run.size));
    }
  };
  for (const Run& run : owned.runs) {
    round(owned.master, run.rule.master, run);
    round(owned.moment1, run.rule.moments, run);
    round(owned.moment2, run.rule.moments, run);
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
  Region region(trace, Phase::adam);
  ops::move_sum<Master>(stream_, head.gradients, embedding.gradients);
}

/// The embedding takes the head's weights, and with the last update that they share its state.
template <class T>
void Optimizer<T>::copy_tied_weights(long step) {
  const OwnedBucket &head = bucket_of("head"), &embedding = bucket_of("embedding");
  const auto copy = [&](const Kept<T>& to, const Kept<T>& from) {
    to.visit([&]<class E>(std::span<E> out) { ops::round_to<E, E>(stream_, out, from.template as<E>()); });
  };
  copy(embedding.master, head.master);
  if (step == config_.train.untie_step) {
    copy(embedding.moment1, head.moment1);
    copy(embedding.moment2, head.moment2);
  }
  round_copy(embedding);
}

template <class T>
bool Optimizer<T>::overflowed() const {
  return !(squares_.value(0) + squares_.value(1) <= std::numeric_limits<Master>::max());
}

/// Brings this rank's part of the weights up to date with its masters.
template <class T>
void Optimizer<T>::round_copy(const OwnedBucket& owned) {
  if constexpr (!Kept<T>::one_type) {
    if (owned.bucket.scalars() || owned.master.wide.empty()) return;
    for (const Run& run : owned.runs) {
      ops::round_to<T>(stream_, owned.copy.subspan(run.first, run.size), owned.master.wide.subspan(run.first, run.size),
                       run.rule.truncates);
    }
  }
}

/// Brings every rank's weights up to date with the masters.
template <class T>
void Optimizer<T>::publish() {
  weights_.note_replaced();
  for (const OwnedBucket& owned : buckets_) round_copy(owned);
  ops::synchronize(stream_);
  if (comm_.size() == 1) return;
  for (const OwnedBucket& owned : buckets_) gather_weights(owned);
  comm_.synchronize();
}

template <class T>
std::size_t Optimizer<T>::state_bytes(const Config& config, const ParameterTable& table, int ranks, std::size_t idle) {
  std::size_t max = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    max = std::max(
        max, state_size<T>(config, table, rank, ranks) + beyond(idle, workspace_size<T>(config, table, rank, ranks)));
  }
  return max + LazyRows<T>::bytes(config, table, ranks);
}

template class Optimizer<Real>;
#if !NANORUN_CUDA
template class Optimizer<double>;
#endif

}  // namespace nanorun
