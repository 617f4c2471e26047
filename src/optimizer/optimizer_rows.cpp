#include "src/optimizer/optimizer_rows.hpp"

#include <algorithm>

#include "src/config/schedule.hpp"

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
bool LazyRows<T>::serves(const Config& config, const ParameterTable& table, const Bucket& bucket, int ranks) {
  const bool tied = config.model.tied_head && bucket.offset == table.find("embedding").offset;
  return ranks == 1 && bucket.lookup != Lookup::none && !tied;
}

template <class T>
std::size_t LazyRows<T>::bytes(const Config& config, const ParameterTable& table, int ranks) {
  std::size_t bytes = 0;
  std::vector<Bucket> kinds;
  for (const Bucket& bucket : table.buckets()) {
    if (!serves(config, table, bucket, ranks)) continue;
    bytes += updates_of(config) * sizeof(AdamRates<Master>);
    if (std::ranges::any_of(kinds, [&](const Bucket& kind) { return read_alike(kind, bucket); })) continue;
    kinds.push_back(bucket);
    bytes += (bucket.units + list_size(config)) * sizeof(std::int32_t);
  }
  return bytes;
}

template <class T>
std::size_t LazyRows<T>::kind_of(const Bucket& bucket) {
  const auto same = [&](const Kind& kind) { return read_alike(kind.table, bucket); };
  const auto found = std::ranges::find_if(kinds_, same);
  if (found != kinds_.end()) return found - kinds_.begin();
  kinds_.push_back({bucket, TensorArena<std::int32_t>(bucket.units, "the rows of lookup tables"),
                    TensorArena<std::int32_t>(list_size(config_), "the rows of lookup tables")});
  return kinds_.size() - 1;
}

template <class T>
kernels::RowList LazyRows<T>::Kind::row_list() const {
  const std::span<std::int32_t> all = list.span();
  const std::size_t length = all.size() / 2;
  return {all.first(length), all.subspan(length, length), &all.back()};
}

template <class T>
void LazyRows<T>::add(const ParameterTable& table, const Bucket& bucket, const Tensors& tensors) {
  const UpdateRule rule =
      update_rule(config_, *std::ranges::find(table.parameters(), bucket.offset, &Parameter::offset));
  std::vector<AdamRates<Master>> rates;
  for (long t = 1; t <= updates_of(config_); ++t) {
    const long step = t * config_.optimizer.adam_period - 1;
    rates.push_back(kernels::adam_rates<Master>(adam_options(config_, rule, step)));
  }
  TensorArena<AdamRates<Master>> on_device(rates.size(), "the rates of lookup tables");
  ops::copy_to_device(stream_, on_device.data(), rates.data(), rates.size() * sizeof(AdamRates<Master>));
  ops::synchronize(stream_);
  tables_.push_back({bucket.offset, kind_of(bucket), static_cast<int>(bucket.units), static_cast<int>(bucket.unit_size),
                     tensors, rule, std::move(on_device)});
}

template <class T>
bool LazyRows<T>::has(const Bucket& bucket) const {
  return std::ranges::find(tables_, bucket.offset, &Table::offset) != tables_.end();
}

template <class T>
void LazyRows<T>::restart() {
  fresh_ = true;
  noted_ = false;
}

/// `updates` have been made before what is called next.
template <class T>
void LazyRows<T>::begin_after(long updates) {
  if (updates > updates_of(config_)) throw Error(ExitCode::internal, "a step behind train.steps");
  updates_ = static_cast<int>(updates);
  if (!fresh_) return;
  for (const Kind& kind : kinds_) ops::fill<std::int32_t>(stream_, kind.last_read.span(), updates_);
  fresh_ = false;
}

/// Calls body(AdamTable, options).
template <class T>
template <class Body>
void LazyRows<T>::visit(const Table& table, const Body& body) const {
  const Tensors& all = table.tensors;
  const kernels::AdamOptions options = adam_options(config_, table.rule, config_.optimizer.adam_period - 1);
  const auto matrix = [&]<class E>(std::span<E> x) { return Mat<E>(x.data(), table.rows, table.cols); };
  all.master.visit([&]<class W>(std::span<W> w) {
    all.moment1.visit([&]<class M>(std::span<M> m) {
      body(AdamTable<T, W, M>{matrix(w), matrix(all.copy), matrix(m), matrix(all.moment2.template as<M>())}, options);
    });
  });
}

template <class T>
void LazyRows<T>::read(const DeviceSequence& sequence, long step) {
  begin_after(step / config_.optimizer.adam_period);
  for (const Kind& kind : kinds_) {
    const std::span<std::int32_t> last_read = kind.last_read.span();
    if (kind.table.lookup == Lookup::bigram) {
      ops::list_rows(stream_, kind.row_list(), last_read, sequence.bigrams, sequence.bigram_order, updates_);
    } else {
      ops::list_rows(stream_, kind.row_list(), last_read, sequence.tokens, sequence.order, updates_);
    }
  }
  for (const Table& table : tables_) {
    visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
      ops::adam_catch_up(stream_, rows, kinds_[table.kind].row_list(),
                         std::span<const AdamRates<Master>>(table.rates.span()), options, updates_);
    });
  }
  noted_ = true;
}

template <class T>
void LazyRows<T>::update(const Bucket& bucket, long step, double* squares) {
  const int t = static_cast<int>((step + 1) / config_.optimizer.adam_period);
  if (t > updates_of(config_)) throw Error(ExitCode::internal, "an update behind train.steps");
  begin_after(t - 1);
  if (!noted_) {
    complete();
    for (const Kind& kind : kinds_) ops::fill<std::int32_t>(stream_, kind.last_read.span(), updates_);
    noted_ = true;
  }
  const Table& table = *std::ranges::find(tables_, bucket.offset, &Table::offset);
  visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
    ops::adam_update_rows(stream_, rows, Mat<Master>(table.tensors.gradients.data(), table.rows, table.cols),
                          std::span<const std::int32_t>(kinds_[table.kind].last_read.span()),
                          std::span<const AdamRates<Master>>(table.rates.span()), options, t, squares);
  });
}

template <class T>
void LazyRows<T>::end_update(long step) {
  updates_ = static_cast<int>((step + 1) / config_.optimizer.adam_period);
  noted_ = false;
}

template <class T>
void LazyRows<T>::complete() {
  if (fresh_) return;
  for (const Table& table : tables_) {
    visit(table, [&](const auto& rows, const kernels::AdamOptions& options) {
      ops::adam_catch_up_all(stream_, rows, std::span<const std::int32_t>(kinds_[table.kind].last_read.span()),
                             std::span<const AdamRates<Master>>(table.rates.span()), options, updates_);
    });
  }
  for (const Kind& kind : kinds_) ops::mark_caught_up(stream_, kind.last_read.span(), updates_);
}

template class LazyRows<Real>;
#if !NANORUN_CUDA
template class LazyRows<double>;
#endif

}  // namespace nanorun
