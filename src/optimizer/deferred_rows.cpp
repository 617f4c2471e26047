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
long updates_of(const Config& config, const UpdateSteps& updates) {
  return std::max<long>(1, updates.before(config.train.steps));
}

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
  std::vector<std::pair<Bucket, UpdateSteps>> groups;
  for (const Bucket& bucket : table.buckets()) {
    if (!serves(config, table, bucket, ranks)) continue;
    const UpdateSteps updates = update_steps(config, table, bucket);
    bytes += updates_of(config, updates) * sizeof(AdamRates<Master>);
    const auto same = [&](const auto& known) { return same_lookup(known.first, bucket) && known.second == updates; };
    if (std::ranges::any_of(groups, same)) continue;
    groups.emplace_back(bucket, updates);
    bytes += (bucket.units + list_size(config)) * sizeof(std::int32_t);
  }
  return bytes;
}

template <class T>
std::size_t DeferredRows<T>::group_of(const OwnedBucket<T>& owned) {
  const Bucket& bucket = owned.bucket;
  const auto same = [&](const LookupGroup& group) {
    return same_lookup(group.table, bucket) && group.updates == owned.updates;
  };
  const auto found = std::ranges::find_if(groups_, same);
  if (found != groups_.end()) return found - groups_.begin();
  groups_.push_back({bucket, owned.updates, TensorArena<std::int32_t>(bucket.units, "the rows of lookup tables"),
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
  const auto updates = static_cast<std::size_t>(updates_of(config_, owned.updates));
  for (long step = owned.updates.first(); rates.size() < updates; ++step) {
    if (!owned.updates.updates_at(step)) continue;
    rates.push_back(kernels::adam_rates<Master>(adam_options(config_, owned.segments.front().hyper, step)));
  }
  TensorArena<AdamRates<Master>> on_device(rates.size(), "the rates of lookup tables");
  ops::copy_to_device(stream_, on_device.data(), rates.data(), rates.size() * sizeof(AdamRates<Master>));
  ops::synchronize(stream_);
  tables_.push_back({&owned, group_of(owned), std::move(on_device)});
}

template <class T>
bool DeferredRows<T>::has(const Bucket& bucket) const {
  return std::ranges::any_of(tables_, [&](const Table& table) { return table.owned->bucket.offset == bucket.offset; });
}

template <class T>
void DeferredRows<T>::restart() {
  for (LookupGroup& group : groups_) {
    group.restarted = true;
    group.reads_known = false;
  }
}

template <class T>
void DeferredRows<T>::mark_all_read(LookupGroup& group) {
  ops::fill<std::int32_t>(stream_, group.last_read.span(), group.made);
}

/// What is called next belongs to `step`, before whose end no update of it has been made.
template <class T>
void DeferredRows<T>::begin(std::size_t index, long step) {
  LookupGroup& group = groups_[index];
  const bool late = group.updates.late(step);
  if (late && !group.late) complete(index);
  group.late = late;
  const long made = group.updates.before(step);
  if (made > updates_of(config_, group.updates)) throw Error(ExitCode::internal, "a step behind train.steps");
  group.made = static_cast<int>(made);
  if (group.restarted) mark_all_read(group);
  group.restarted = false;
}

/// Calls body(AdamTable, options).
template <class T>
template <class Body>
void DeferredRows<T>::visit(const Table& table, const Body& body) const {
  const OwnedBucket<T>& all = *table.owned;
  const LookupGroup& group = groups_[table.group];
  const long step = group.late ? group.updates.late_from : 0;
  const kernels::AdamOptions options = adam_options(config_, all.segments.front().hyper, step);
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
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    begin(index, step);
    LookupGroup& group = groups_[index];
    const std::span<std::int32_t> last_read = group.last_read.span();
    if (group.table.lookup == Lookup::bigram) {
      ops::list_rows(stream_, group.row_list(), last_read, sequence.bigrams, sequence.bigram_order, group.made);
    } else {
      ops::list_rows(stream_, group.row_list(), last_read, sequence.tokens, sequence.order, group.made);
    }
    group.reads_known = true;
  }
  for (const Table& table : tables_) {
    const LookupGroup& group = groups_[table.group];
    visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
      ops::adam_catch_up(stream_, rows, group.row_list(), std::span<const AdamRates<Master>>(table.rates.span()),
                         options, group.made);
    });
  }
}

template <class T>
void DeferredRows<T>::update(const Bucket& bucket, long step, double* squares) {
  const Table& table = *std::ranges::find_if(
      tables_, [&](const Table& candidate) { return candidate.owned->bucket.offset == bucket.offset; });
  LookupGroup& group = groups_[table.group];
  const int t = static_cast<int>(group.updates.before(step + 1));
  if (t > updates_of(config_, group.updates)) throw Error(ExitCode::internal, "an update behind train.steps");
  begin(table.group, step);
  if (!group.reads_known) {
    complete(table.group);
    mark_all_read(group);
    group.reads_known = true;
  }
  visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
    ops::adam_update_rows(stream_, rows, Mat<Master>(table.owned->gradients.wide.data(), table.rows(), table.cols()),
                          std::span<const std::int32_t>(group.last_read.span()),
                          std::span<const AdamRates<Master>>(table.rates.span()), options, t, squares);
  });
}

template <class T>
void DeferredRows<T>::end_step(long step) {
  for (LookupGroup& group : groups_) {
    if (!group.updates.updates_at(step)) continue;
    group.made = static_cast<int>(group.updates.before(step + 1));
    group.reads_known = false;
  }
}

template <class T>
void DeferredRows<T>::complete() {
  for (std::size_t group = 0; group < groups_.size(); ++group) complete(group);
}

/// Brings all rows of the tables of a group up to date.
template <class T>
void DeferredRows<T>::complete(std::size_t index) {
  const LookupGroup& group = groups_[index];
  if (group.restarted) return;
  for (const Table& table : tables_) {
    if (table.group != index) continue;
    visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
      ops::adam_catch_up_all(stream_, rows, std::span<const std::int32_t>(group.last_read.span()),
                             std::span<const AdamRates<Master>>(table.rates.span()), options, group.made);
    });
  }
  ops::mark_caught_up(stream_, group.last_read.span(), group.made);
}

NANORUN_INSTANTIATE(class DeferredRows);

}  // namespace nanorun
