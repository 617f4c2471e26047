#include "src/optimizer/optimizer.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::Stream;

namespace {

/// Bytes of masters and state of a rank.
template <class T>
std::size_t state_size(const Config& config, const ParameterTable& table, const UpdateRules<T>& rules,
                       const RankLoad& load) {
  kernels::WorkspaceAllocator counter({});
  for (std::size_t i = 0; i < load.size(); ++i) {
    const Bucket& bucket = table.buckets()[i];
    BucketState<T>(counter, config, bucket, load[i], rules.of(bucket.group));
  }
  return counter.used();
}

/// Bytes of scratch memory that the rules need on a rank and the idle memory cannot give.
template <class T>
std::size_t own_scratch_size(const ParameterTable& table, const UpdateRules<T>& rules, const RankLoad& load,
                             std::size_t idle) {
  std::size_t needed = 0;
  for (const auto& [name, rule] : rules.all())
    needed = std::max(needed, rule->scratch_bytes(rules.part(table, load, name)));
  return needed > idle ? needed : 0;
}

constexpr const char* state_remedy = "use more ranks, or lower model.width or model.layers";

}  // namespace

template <class T>
Optimizer<T>::Optimizer(const Config& config, const ParameterTable& table, const Weights<T>& weights,
                        GradientSpans<T> gradients, kernels::Workspace idle, TensorComm& comm, TouchedRows& rows,
                        Stream stream)
    : config_(config),
      table_(table),
      weights_(weights),
      comm_(comm),
      rows_(rows),
      stream_(stream),
      rules_(config, stream),
      state_(state_size(config, table, rules_, load_of(table, comm.layout(), comm.rank())), "the optimizer's state",
             state_remedy),
      own_scratch_(own_scratch_size(table, rules_, load_of(table, comm.layout(), comm.rank()), idle.size()),
                   "Muon's scratch", state_remedy),
      scratch_(own_scratch_.space().empty() ? idle : own_scratch_.space()),
      squares_(stream, 2),
      buckets_(own_buckets(gradients)),
      batches_(shape_batches()),
      transfers_(buckets_.size(), weights, comm, rows, stream),
      clipping_(config, comm, stream),
      tied_lm_head_(config, table, buckets_),
      averages_(config, buckets_, stream),
      slabs_(config, buckets_, stream),
      period_(common_period(config, table)),
      has_late_updates_(std::ranges::any_of(buckets_, [](const Owned& owned) { return owned.updates.changes(); })) {
  comm_.share(weights.tensors());
  comm_.share(weights.scalars());
  for (const Owned& owned : buckets_) owned.rule->adopt(table, owned, comm.size());
  clear_state();
}

/// This rank's parts of all buckets, from the highest layer on.
template <class T>
auto Optimizer<T>::own_buckets(const GradientSpans<T>& gradients) -> std::vector<Owned> {
  kernels::WorkspaceAllocator allocator(state_.space());
  std::vector<Owned> buckets;
  for (const Bucket& bucket : table_.buckets()) {
    Owned& owned = buckets.emplace_back(own(bucket, gradients, allocator));
    owned.index = buckets.size() - 1;
  }
  std::ranges::stable_sort(buckets, std::greater(), [](const Owned& owned) { return owned.bucket.layer; });
  return buckets;
}

template <class T>
auto Optimizer<T>::own(const Bucket& bucket, const GradientSpans<T>& gradients, kernels::WorkspaceAllocator& allocator)
    -> Owned {
  Owned owned;
  owned.bucket = bucket;
  owned.rule = &rules_.of(bucket.group);
  owned.bounds = bucket.bounds(comm_.layout());
  owned.tensors = table_.owned(bucket, comm_.layout(), comm_.rank());
  const auto part = [&](const auto& all) { return all.subspan(owned.begin(comm_.part()), owned.size(comm_.part())); };
  owned.updates = update_steps(config_, table_, bucket);
  if (!bucket.fixed()) {
    owned.all_gradients = gradients_of(gradients, bucket);
    owned.gradients = owned.all_gradients.part(owned.begin(comm_.part()), owned.size(comm_.part()));
    owned.rounds_gradients = bucket.offset < gradients.matrices.size();
  }
  BucketState<T> kept(allocator, config_, bucket, owned.tensors, *owned.rule);
  owned.master = kept.master;
  owned.state = std::move(kept.state);
  owned.outer = kept.outer;
  owned.averages = std::move(kept.averages);
  if (bucket.scalars()) {
    owned.all_scalars = weights_.scalars().subspan(bucket.offset - table_.tensor_size(), bucket.size());
    owned.master.wide = part(owned.all_scalars);
  } else {
    owned.all_weights = weights_.tensors().subspan(bucket.offset, bucket.size());
    owned.weights = part(owned.all_weights);
    if constexpr (StateSpan<T>::one_type) {
      owned.master.wide = owned.weights;
    } else if (owned.master.wide.empty()) {
      owned.master.narrow = owned.weights;
    }
  }
  owned.segments = segments_of(config_, owned.tensors);
  return owned;
}

template <class T>
StateSpan<T> Optimizer<T>::gradients_of(const GradientSpans<T>& gradients, const Bucket& bucket) const {
  const std::size_t rounded = gradients.matrices.size(), at = table_.gradient_at(bucket.offset);
  if (at >= rounded) return {gradients.wide.subspan(at - rounded, bucket.size()), {}};
  const std::span<T> matrices = gradients.matrices.subspan(at, bucket.size());
  if constexpr (StateSpan<T>::one_type) {
    return {matrices, {}};
  } else {
    return {{}, matrices};
  }
}

/// Buckets whose rule updates all of one matrix shape at once, from the lowest layer on, learned scalars last; in a
/// batch from the highest.
template <class T>
auto Optimizer<T>::shape_batches() const -> std::vector<std::vector<const Owned*>> {
  std::vector<std::vector<const Owned*>> batches;
  for (auto last = buckets_.crbegin(); last != buckets_.crend(); ++last) {
    const auto same_batch = [&](const Owned* owned) {
      return owned->rule == last->rule && same_matrix_shape(owned->bucket, last->bucket);
    };
    const auto known = [&](const std::vector<const Owned*>& batch) { return same_batch(batch.front()); };
    if (!last->rule->batches_shapes() || std::ranges::any_of(batches, known)) continue;
    std::vector<const Owned*>& batch = batches.emplace_back();
    for (const Owned& owned : buckets_) {
      if (same_batch(&owned)) batch.push_back(&owned);
    }
  }
  const auto of_tensors = [](const auto& batch) { return !batch.front()->bucket.scalars(); };
  std::stable_partition(batches.begin(), batches.end(), of_tensors);  // clang 14 takes no subrange of libstdc++ 12
  return batches;
}

template <class T>
void Optimizer<T>::clear_state() {
  const kernels::Workspace state = state_.space();
  ops::fill<Master>(stream_, {reinterpret_cast<Master*>(state.data()), state.size() / sizeof(Master)}, 0);
  for (const auto& [name, rule] : rules_.all()) rule->restart();
}

template <class T>
void Optimizer<T>::initialise(std::int64_t seed) {
  clear_state();
  for (const Owned& owned : buckets_) {
    initialise(owned, seed);
    owned.begin_outer(stream_);
  }
  holds_gradients_ = gradients_wait_ = late_sums_wait_ = false;
  refresh_weights();
}

/// Initial values are formed in the type Master. If no master has this type, the gradients serve as scratch memory,
/// since no step has begun. Fixed tensors have no gradients and get scratch memory for the moment, as do those whose
/// gradients are narrower.
template <class T>
void Optimizer<T>::initialise(const Owned& owned, std::int64_t seed) {
  const bool needs_scratch = owned.master.wide.empty() && owned.gradients.wide.size() < owned.master.size();
  const bool takes_idle = scratch_.size() >= owned.master.size() * sizeof(Master);
  const TensorArena<Master> memory(needs_scratch && !takes_idle ? owned.master.size() : 0, "initial values");
  Master* const scratch = takes_idle ? reinterpret_cast<Master*>(scratch_.data()) : memory.data();
  const std::span<Master> all = needs_scratch               ? std::span(scratch, owned.master.size())
                                : owned.master.wide.empty() ? owned.gradients.wide
                                                            : owned.master.wide;
  for (const OwnedRows& rows : owned.tensors) {
    if (rows.row_count == 0) continue;
    const std::size_t first = rows.offset - owned.bucket.offset - owned.begin(comm_.part());
    nanorun::initialise<Master>(stream_, all.subspan(first, rows.size()), rows, seed);
  }
  if constexpr (!StateSpan<T>::one_type) {
    if (owned.master.wide.empty()) ops::round_to<T>(stream_, owned.master.narrow, all);
  }
  owned.round_state(stream_);
  if (memory.size() > 0) ops::synchronize(stream_);
}

template <class T>
void Optimizer<T>::warm_up(Trace& trace) {
  if (clipping_) clip_gradients(trace, 0);
  for (const auto& batch : batches_) update(trace, batch, period_ - 1);
  for (const Owned& owned : buckets_) {
    if (!owned.rule->batches_shapes()) owned.rule->update(context(trace), std::array{&owned}, owned.updates.first());
  }
  collect();
  for (std::size_t row = 0; row < config_.average.size(); ++row) averages_.begin(row);
  for (const Owned& owned : buckets_) owned.step_outer(stream_, config_.optimizer);
  clear_state();
}

template <class T>
bool Optimizer<T>::keeps_gradients(long step) const {
  return gradients_wait_ || step % period_ != 0;
}

template <class T>
void Optimizer<T>::begin_step(long step) {
  const bool begins = !holds_gradients_ && !gradients_wait_;
  rows_.upload(comm_.stream());
  for (const Owned& owned : buckets_) {
    if (begins) {
      clear_gradients(owned, late_sums_wait_ && owned.updates.changes() ? Parts::of_other_ranks : Parts::all);
    } else if (leaves_others(owned.bucket, step)) {
      clear_gradients(owned, Parts::of_other_ranks);
    }
  }
  holds_gradients_ = true;
}

/// Whether gradients that their owners have received still stand in this rank's memory, where new ones are added.
template <class T>
bool Optimizer<T>::leaves_others(const Bucket& bucket, long step) const {
  if (!bucket.accumulates() || comm_.size() == 1) return false;
  if (bucket.group == Group::lm_head) return keeps_gradients(step);  // else the first sequence overwrites all of them
  if (rows_.known(bucket)) return !holds_gradients_;
  return keeps_gradients(step) || clears_gradients();
}

template <class T>
void Optimizer<T>::clear_gradients(const Owned& owned, Parts parts) {
  if (!owned.bucket.accumulates()) return;
  const int part = comm_.part();
  const std::span<Master> all = owned.all_gradients.wide;  // narrow ones are of buckets that do not accumulate
  ops::fill<Master>(stream_, all.first(owned.bounds[part]), 0);
  if (parts == Parts::all) ops::fill<Master>(stream_, owned.gradients.wide, 0);
  ops::fill<Master>(stream_, all.subspan(owned.bounds[part + 1]), 0);
}

template <class T>
void Optimizer<T>::read_rows(Trace& trace, const DeviceSequence& sequence, long step) {
  for (const auto& [name, rule] : rules_.all()) rule->read_rows(trace, sequence, step);
}

template <class T>
void Optimizer<T>::complete_rows() {
  for (const auto& [name, rule] : rules_.all()) rule->complete_rows();
}

template <class T>
void Optimizer<T>::start_reduce_scatter(Trace& trace, int layer, long step) {
  for (const Owned& owned : buckets_) {
    if (owned.bucket.layer == layer && !owned.bucket.fixed()) transfers_.reduce_scatter(trace, owned);
  }
  // What is left of the backward pass behind the first block is too short for a table's gradients to arrive in. Before
  // an outer step weights cannot leave. The norm by which gradients are clipped is that of all.
  const bool updates = layer >= 0 && !comm_.occupies_sms() && !outer_due(config_, step) && !clipping_;
  if (updates) update_tables(trace, layer + 1, step);
}

template <class T>
void Optimizer<T>::await_weights(Trace& trace, int layer) {
  for (const Owned& owned : buckets_) {
    if (owned.bucket.layer == layer && !owned.bucket.fixed()) transfers_.await_weights(trace, owned);
  }
}

/// The last tables come before the last batch of matrices: their gradients, which were handed over last, arrive during
/// the batches before it, and their new weights, which the next forward pass needs first, leave during that one.
template <class T>
void Optimizer<T>::step(Trace& trace, long step) {
  if (clipping_) clip_gradients(trace, step);
  const auto matrices = std::ranges::count_if(batches_, [](const auto& b) { return !b.front()->bucket.scalars(); });
  const std::size_t before_tables = std::max<std::ptrdiff_t>(matrices - 1, 0);
  for (std::size_t i = 0; i < before_tables; ++i) update(trace, batches_[i], step);
  update_tables(trace, -1, step);
  for (std::size_t i = before_tables; i < batches_.size(); ++i) update(trace, batches_[i], step);
  for (const auto& [name, rule] : rules_.all()) rule->end_step(step);
  if (outer_due(config_, step)) step_outer(trace);
  for (auto owned = buckets_.rbegin(); owned != buckets_.rend(); ++owned) {
    if (!owned->updated && !owned->bucket.fixed()) transfers_.all_gather(trace, *owned);
    owned->updated = false;
  }
  if ((step + 1) % period_ == 0) gradients_wait_ = false;
  if (averages_.due(step)) sample_averages(trace, step);
}

template <class T>
void Optimizer<T>::step_outer(Trace& trace) {
  Region region(trace, Phase::adam);
  complete_rows();
  for (const Owned& owned : buckets_) owned.step_outer(stream_, config_.optimizer);
}

/// Deferred updates of rows that are averaged are made first.
template <class T>
void Optimizer<T>::sample_averages(Trace& trace, long step) {
  Region region(trace, Phase::adam);
  if (averages_.reads_waiting_rows(step)) complete_rows();
  averages_.sample(step);
}

template <class T>
void Optimizer<T>::apply_averages() {
  complete_rows();
  averages_.apply();
  transfers_.all_gather_now(buckets_);
}

/// Updates the tables and scalars from a layer up that have not been yet. New weights leave in the order in which the
/// next forward pass needs them.
template <class T>
void Optimizer<T>::update_tables(Trace& trace, int lowest_layer, long step) {
  const auto due = [&](const Owned& owned) {
    // A tied LM head waits for the gradients of the embedding, which come last.
    const bool waits = lowest_layer >= 0 && &owned == &tied_lm_head_.lm_head() && tied_at(step);
    return !owned.rule->batches_shapes() && !owned.bucket.fixed() && owned.bucket.layer >= lowest_layer &&
           !owned.updated && !waits;
  };
  const bool joins = lowest_layer < 0 && tied_at(step);
  if (joins && !clipping_) take_tied_gradients(trace);
  for (const Owned& owned : buckets_) {
    if (due(owned)) update(trace, std::array{&owned}, step);
  }
  if (joins) tied_lm_head_.copy_weights(stream_, step);
  for (auto owned = buckets_.rbegin(); owned != buckets_.rend(); ++owned) {
    if (!due(*owned)) continue;
    if (outer_due(config_, step)) continue;
    if (owned->updates.updates_at(step)) transfers_.all_gather(trace, *owned);
    owned->updated = true;
  }
}

/// Whether LM head and embedding have one update at the end of a step.
template <class T>
bool Optimizer<T>::tied_at(long step) const {
  return tied_lm_head_.tied(step) && tied_lm_head_.lm_head().updates.updates_at(step);
}

template <class T>
void Optimizer<T>::take_tied_gradients(Trace& trace) {
  transfers_.await_gradients(trace, tied_lm_head_.lm_head());
  transfers_.await_gradients(trace, tied_lm_head_.embedding());
  Region region(trace, Phase::adam);
  tied_lm_head_.take_gradients(stream_);
}

/// Once all gradients have arrived, those of tied tensors in one.
template <class T>
void Optimizer<T>::clip_gradients(Trace& trace, long step) {
  for (const Owned& owned : buckets_) {
    if (!owned.bucket.fixed()) transfers_.await_gradients(trace, owned);
  }
  if (tied_at(step)) take_tied_gradients(trace);
  clipping_.apply(trace, buckets_, transfers_);
}

/// Updates buckets of one rule, once their gradients have arrived.
template <class T>
void Optimizer<T>::update(Trace& trace, std::span<const Owned* const> buckets, long step) {
  for (const Owned* const owned : buckets) transfers_.await_gradients(trace, *owned);
  const Owned& first = *buckets.front();
  if (!first.updates.updates_at(step) || (&first == &tied_lm_head_.embedding() && tied_lm_head_.tied(step))) return;
  first.rule->update(context(trace), buckets, step);
}

template <class T>
void Optimizer<T>::collect() {
  squares_.collect(stream_);
  if (clipping_) clipping_.collect();
}

template <class T>
bool Optimizer<T>::overflowed() const {
  const double before_clipping = clipping_ ? clipping_.squares() : 0;
  return !(squares_.value(0) + squares_.value(1) + before_clipping <= std::numeric_limits<Master>::max());
}

template <class T>
std::vector<Slab<typename Optimizer<T>::Master>> Optimizer<T>::slabs() {
  complete_rows();
  slabs_.download();
  return slabs_.slabs();
}

template <class T>
void Optimizer<T>::restore(const Restored& restored) {
  slabs_.upload();
  for (const auto& [name, rule] : rules_.all()) rule->restart();
  for (const Owned& owned : buckets_) owned.round_state(stream_);
  holds_gradients_ = false;
  gradients_wait_ = restored.gradients_wait;
  late_sums_wait_ = restored.late_sums_wait;
  refresh_weights();
  for (std::size_t row = 0; row < restored.averages.size(); ++row) {
    if (restored.averages[row]) averages_.begin(row);
  }
}

/// Collective. Makes every rank's weights those of the masters. Waits for the device.
template <class T>
void Optimizer<T>::refresh_weights() {
  for (const Owned& owned : buckets_) owned.round_weights(stream_);
  ops::synchronize(stream_);
  transfers_.all_gather_now(buckets_);
}

template <class T>
std::size_t Optimizer<T>::state_bytes(const Config& config, const ParameterTable& table, const NodeLayout& layout,
                                      std::size_t idle) {
  const UpdateRules<T> rules(config);
  std::size_t max = 0;
  for (const RankLoad& load : distinct_loads(table, layout)) {
    max = std::max(max, state_size(config, table, rules, load) + own_scratch_size(table, rules, load, idle) +
                            Averages<T>::kept_bytes(config, load));
  }
  for (const auto& [name, rule] : rules.all()) max += rule->adopted_bytes(table, layout.ranks());
  return max + GradientClipping<T>::bytes(config, layout.ranks());
}

NANORUN_INSTANTIATE(class Optimizer);

}  // namespace nanorun
