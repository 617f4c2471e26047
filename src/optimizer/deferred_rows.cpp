#include "src/optimizer/deferred_rows.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"
#include "src/optimizer/adam_options.hpp"

namespace nanorun {

using kernels::AdamRates;
using kernels::AdamTable;
using kernels::Mat;

namespace {

/// Updates of a run, and at least the one by which kernels are warmed up.
long updates_of(const Config& config) { return std::max<long>(1, config.train.steps / config.optimizer.adam_period); }

/// Numbers of a RowList for the longest sequence.
std::size_t list_size(const Config& config) { return 2 * static_cast<std::size_t>(longest_length(config)) + 1; }

}  // namespace

template <class T>
bool DeferredRows<T>::serves(const Config& config, const ParameterTable& table, const Bucket& bucket, int ranks) {
  const bool tied = config.model.tied_head && bucket.offset == table.find("embedding").offset;
  return ranks == 1 && bucket.lookup != Lookup::none && !tied;
}

template <class T>
std::size_t DeferredRows<T>::bytes(const Config& config, const ParameterTable& table, int ranks) {
  std::size_t bytes = 0;
  std::vector<Bucket> groups;
  for (const Bucket& bucket : table.buckets()) {
    if (!serves(config, table, bucket, ranks)) continue;
    bytes += updates_of(config) * sizeof(AdamRates<Master>);
    if (std::ranges::any_of(groups, [&](const Bucket& known) { return same_lookup(known, bucket); })) continue;
    groups.push_back(bucket);
    bytes += (bucket.units + list_size(config)) * sizeof(std::int32_t);
  }
  return bytes;
}

template <class T>
std::size_t DeferredRows<T>::group_of(const Bucket& bucket) {
  const auto same = [&](const LookupGroup& group) { return same_lookup(group.table, bucket); };
  const auto found = std::ranges::find_if(groups_, same);
  if (found != groups_.end()) return found - groups_.begin();
  groups_.push_back({bucket, TensorArena<std::int32_t>(bucket.units, "the rows of lookup tables"),
                     TensorArena<std::int32_t>(list_size(config_), "the rows of lookup tables")});
  return groups_.size() - 1;
}

template <class T>
kernels::RowList DeferredRows<T>::LookupGroup::row_list() const {
  const std::span<std::int32_t> all = list.span();
  const std::size_t length = all.size() / 2;
  return {all.first(length), all.subspan(length, length), &all.back()};
}

template <class T>
void DeferredRows<T>::add(const OwnedBucket<T>& owned) {
  std::vector<AdamRates<Master>> rates;
  for (long t = 1; t <= updates_of(config_); ++t) {
    const long step = t * config_.optimizer.adam_period - 1;
    rates.push_back(kernels::adam_rates<Master>(adam_options(config_, owned.segments.front().hyper, step)));
  }
  TensorArena<AdamRates<Master>> on_device(rates.size(), "the rates of lookup tables");
  ops::copy_to_device(stream_, on_device.data(), rates.data(), rates.size() * sizeof(AdamRates<Master>));
  ops::synchronize(stream_);
  tables_.push_back({&owned, group_of(owned.bucket), std::move(on_device)});
}

template <class T>
bool DeferredRows<T>::has(const Bucket& bucket) const {
  return std::ranges::any_of(tables_, [&](const Table& table) { return table.owned->bucket.offset == bucket.offset; });
}

template <class T>
void DeferredRows<T>::restart() {
  restarted_ = true;
  reads_known_ = false;
}

/// `updates` have been made before what is called next.
template <class T>
void DeferredRows<T>::begin_after(long updates) {
  if (updates > updates_of(config_)) throw Error(ExitCode::internal, "a step behind train.steps");
  updates_ = static_cast<int>(updates);
  if (!restarted_) return;
  for (const LookupGroup& group : groups_) ops::fill<std::int32_t>(stream_, group.last_read.span(), updates_);
  restarted_ = false;
}

/// Calls body(AdamTable, options).
template <class T>
template <class Body>
void DeferredRows<T>::visit(const Table& table, const Body& body) const {
  const OwnedBucket<T>& all = *table.owned;
  const kernels::AdamOptions options =
      adam_options(config_, all.segments.front().hyper, config_.optimizer.adam_period - 1);
  const auto matrix = [&]<class E>(std::span<E> x) { return Mat<E>(x.data(), table.rows(), table.cols()); };
  all.master.visit([&]<class W>(std::span<W> w) {
    all.state[0].visit([&]<class M>(std::span<M> m) {
      body(AdamTable<T, W, M>{matrix(w), matrix(all.weights), matrix(m), matrix(all.state[1].template as<M>())},
           options);
    });
  });
}

template <class T>
void DeferredRows<T>::read(const DeviceSequence& sequence, long step) {
  begin_after(step / config_.optimizer.adam_period);
  for (const LookupGroup& group : groups_) {
    const std::span<std::int32_t> last_read = group.last_read.span();
    if (group.table.lookup == Lookup::bigram) {
      ops::list_rows(stream_, group.row_list(), last_read, sequence.bigrams, sequence.bigram_order, updates_);
    } else {
      ops::list_rows(stream_, group.row_list(), last_read, sequence.tokens, sequence.order, updates_);
    }
  }
  for (const Table& table : tables_) {
    visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
      ops::adam_catch_up(stream_, rows, groups_[table.group].row_list(),
                         std::span<const AdamRates<Master>>(table.rates.span()), options, updates_);
    });
  }
  reads_known_ = true;
}

template <class T>
void DeferredRows<T>::update(const Bucket& bucket, long step, double* squares) {
  const int t = static_cast<int>((step + 1) / config_.optimizer.adam_period);
  if (t > updates_of(config_)) throw Error(ExitCode::internal, "an update behind train.steps");
  begin_after(t - 1);
  if (!reads_known_) {
    complete();
    for (const LookupGroup& group : groups_) ops::fill<std::int32_t>(stream_, group.last_read.span(), updates_);
    reads_known_ = true;
  }
  const Table& table = *std::ranges::find_if(
      tables_, [&](const Table& candidate) { return candidate.owned->bucket.offset == bucket.offset; });
  visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
    ops::adam_update_rows(stream_, rows, Mat<Master>(table.owned->gradients.data(), table.rows(), table.cols()),
                          std::span<const std::int32_t>(groups_[table.group].last_read.span()),
                          std::span<const AdamRates<Master>>(table.rates.span()), options, t, squares);
  });
}

template <class T>
void DeferredRows<T>::end_update(long step) {
  updates_ = static_cast<int>((step + 1) / config_.optimizer.adam_period);
  reads_known_ = false;
}

template <class T>
void DeferredRows<T>::complete() {
  if (restarted_) return;
  for (const Table& table : tables_) {
    visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
      ops::adam_catch_up_all(stream_, rows, std::span<const std::int32_t>(groups_[table.group].last_read.span()),
                             std::span<const AdamRates<Master>>(table.rates.span()), options, updates_);
    });
  }
  for (const LookupGroup& group : groups_) ops::mark_caught_up(stream_, group.last_read.span(), updates_);
}

NANORUN_INSTANTIATE(class DeferredRows);

}  // namespace nanorun
