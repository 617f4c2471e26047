#include "src/optimizer/averages.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

template <class T>
bool Averages<T>::due(long step) const {
  return std::ranges::any_of(config_.average,
                             [&](const AverageConfig& average) { return average_rate(config_, average, step) > 0; });
}

template <class T>
bool Averages<T>::reads_waiting_rows(long step) const {
  const auto sampled = [&](const BucketAverage<T>& average) {
    return average_rate(config_, config_.average[average.row], step) > 0;
  };
  return std::ranges::any_of(buckets_, [&](const OwnedBucket<T>& owned) {
    return owned.rule->defers(owned.bucket) && std::ranges::any_of(owned.averages, sampled);
  });
}

template <class T>
template <class Body>
void Averages<T>::for_runs(std::size_t row, const Body& body) const {
  for (const OwnedBucket<T>& owned : buckets_) {
    for (const BucketAverage<T>& average : owned.averages) {
      if (average.row != row) continue;
      for (const auto& run : average.runs) {
        const std::span<Master> values = average.values.subspan(run.in_values, run.size);
        if (owned.bucket.scalars()) {
          body(owned.master.wide.subspan(run.in_part, run.size), values, run.rounds);
        } else {
          body(owned.weights.subspan(run.in_part, run.size), values, run.rounds);
        }
      }
    }
  }
}

template <class T>
void Averages<T>::sample(long step) const {
  for (std::size_t row = 0; row < config_.average.size(); ++row) {
    const double rate = average_rate(config_, config_.average[row], step);
    if (rate > 0) take(row, rate);
  }
}

template <class T>
void Averages<T>::begin(std::size_t row) const {
  take(row, 1);
}

/// Takes a sample of the weights.
template <class T>
void Averages<T>::take(std::size_t row, double rate) const {
  for_runs(row, [&]<class W>(std::span<W> weights, std::span<Master> values, bool) {
    ops::average_weights<W>(stream_, values, weights, rate);
  });
}

template <class T>
void Averages<T>::apply() {
  for (const OwnedBucket<T>& owned : buckets_) {
    if (!owned.averages.empty()) keep(owned);
  }
  for (std::size_t row = 0; row < config_.average.size(); ++row) {
    const double blend = config_.average[row].blend;
    for_runs(row, [&]<class W>(std::span<W> weights, std::span<Master> values, bool rounds) {
      ops::blend_average<W>(stream_, weights, values, blend);
      if constexpr (std::is_same_v<W, Master>) {
        if (rounds) ops::round_as_bf16<W>(stream_, weights);
      }
    });
  }
  ops::synchronize(stream_);
}

template <class T>
void Averages<T>::keep(const OwnedBucket<T>& owned) {
  owned.master.visit([&]<class E>(std::span<E> masters) {
    if (static_cast<const void*>(masters.data()) != owned.weights.data() && !owned.bucket.scalars()) return;
    Kept& kept = kept_.emplace_back(Kept{&owned, std::vector<std::byte>(masters.size_bytes())});
    ops::copy_to_host(stream_, kept.masters.data(), masters.data(), masters.size_bytes());
  });
  ops::synchronize(stream_);
}

template <class T>
void Averages<T>::take_back() {
  for (const Kept& kept : kept_) {
    kept.owned->master.visit([&]<class E>(std::span<E> masters) {
      ops::copy_to_device(stream_, masters.data(), kept.masters.data(), masters.size_bytes());
    });
  }
  ops::synchronize(stream_);
  kept_.clear();
}

template <class T>
std::size_t Averages<T>::kept_bytes(const Config& config, const RankLoad& load) {
  if constexpr (!ops::on_host) return 0;
  std::size_t elements = 0;
  for (const std::vector<OwnedRows>& bucket : load) {
    const auto averaged = [&](const OwnedRows& rows) {
      return std::ranges::any_of(
          config.average, [&](const AverageConfig& average) { return !averaged_rows(config, average, rows).empty(); });
    };
    if (std::ranges::none_of(bucket, averaged)) continue;
    for (const OwnedRows& rows : bucket) elements += rows.size();
  }
  return elements * sizeof(Master);
}

NANORUN_INSTANTIATE(class Averages);

}  // namespace nanorun
