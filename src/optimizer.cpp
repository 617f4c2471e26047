#include "src/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/schedule.hpp"

namespace nanorun {

using kernels::MatrixBatch;
using kernels::Stream;

namespace {

int moments(const Bucket& bucket) { return bucket.group == Group::matrix ? 1 : 2; }

/// Elements of state of one rank's part of all buckets.
std::size_t state_size(const ParameterTable& table, int rank, int ranks) {
  std::size_t size = 0;
  for (const Bucket& bucket : table.buckets()) {
    const Bounds bounds = bucket.bounds(ranks);
    size += moments(bucket) * (bounds[rank + 1] - bounds[rank]);
  }
  return size;
}

MatrixBatch batch(const Bucket& bucket, std::size_t owned_size) {
  return {static_cast<int>(owned_size / bucket.unit_size), bucket.rows, bucket.cols};
}

template <class T>
std::size_t workspace_size(const ParameterTable& table, int rank, int ranks) {
  std::size_t bytes = 0;
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.group != Group::matrix) continue;
    const Bounds bounds = bucket.bounds(ranks);
    bytes = std::max(bytes, ops::newton_schulz_workspace<T>(batch(bucket, bounds[rank + 1] - bounds[rank])));
  }
  return bytes;
}

}  // namespace

template <class T>
Optimizer<T>::Optimizer(const Config& config, const ParameterTable& table, std::span<T> weights, std::span<T> gradients,
                        Comm& comm)
    : config_(config),
      table_(table),
      weights_(weights),
      gradients_(gradients),
      comm_(comm),
      state_(state_size(table, comm.rank(), comm.size())),
      workspace_(workspace_size<T>(table, comm.rank(), comm.size())) {
  std::size_t at = 0;
  const auto take = [&](std::size_t size) {
    at += size;
    return state_.span().subspan(at - size, size);
  };
  for (const Bucket& bucket : table.buckets()) {
    Shard shard{bucket, bucket.bounds(comm.size()), {}, {}, {}, {}};
    const std::size_t first = bucket.offset + shard.bounds[comm.rank()];
    const std::size_t size = shard.bounds[comm.rank() + 1] - shard.bounds[comm.rank()];
    shard.weights = weights.subspan(first, size);
    shard.gradients = gradients.subspan(first, size);
    shard.moment1 = take(size);
    if (moments(bucket) == 2) shard.moment2 = take(size);
    shards_.push_back(shard);
  }
  ops::fill<T>({}, state_.span(), 0);
}

template <class T>
void Optimizer<T>::step(Stream stream, Trace& trace, long step) {
  overflowed_ = false;
  for (const Shard& shard : shards_) {
    const std::span<T> gradients = gradients_.subspan(shard.bucket.offset, shard.bucket.size());
    const std::span<T> weights = weights_.subspan(shard.bucket.offset, shard.bucket.size());
    {
      Region region(trace, Phase::reduce_gradients);
      comm_.reduce_scatter(gradients, shard.bounds);
      ops::scale<T>(stream, shard.gradients, 1.0 / config_.train.sequences);
    }
    update(stream, trace, shard, step);
    {
      Region region(trace, Phase::gather_weights);
      comm_.all_gather(weights, shard.bounds);
    }
  }
  ops::fill<T>(stream, gradients_, 0);
}

template <class T>
void Optimizer<T>::update(Stream stream, Trace& trace, const Shard& shard, long step) {
  if (shard.weights.empty()) return;
  const bool matrices = shard.bucket.group == Group::matrix;
  Region region(trace, matrices ? Phase::muon : Phase::adam);
  check_range(stream, shard.gradients);
  if (matrices) {
    update_matrices(stream, shard, step);
  } else {
    update_elements(stream, shard, step);
  }
  check_range(stream, shard.weights);
}

template <class T>
void Optimizer<T>::check_range(Stream stream, std::span<const T> tensor) {
  const double sum = ops::sum_of_squares<T>(stream, tensor);
  if (!(sum <= std::numeric_limits<T>::max())) overflowed_ = true;
}

template <class T>
void Optimizer<T>::update_matrices(Stream stream, const Shard& shard, long step) {
  const Bucket& bucket = shard.bucket;
  double squares = 0;
  ops::nesterov_momentum<T>(stream, shard.gradients, shard.moment1, muon_momentum(config_.optimizer, step), 1,
                            &squares);
  ops::newton_schulz<T>(stream, shard.gradients, batch(bucket, shard.gradients.size()), workspace_.space());
  const double shape_factor = std::sqrt(std::max(1.0, static_cast<double>(bucket.rows) / bucket.cols));
  const double lr = config_.optimizer.muon_lr * lr_factor(config_.train, step);
  ops::add_scaled<T>(stream, shard.weights, shard.weights, shard.gradients, -lr * shape_factor, &squares);
}

template <class T>
void Optimizer<T>::update_elements(Stream stream, const Shard& shard, long step) {
  const OptimizerConfig& o = config_.optimizer;
  const double lr = learning_rate(shard.bucket.group) * lr_factor(config_.train, step);
  double squares = 0;
  ops::adam_update<T>(stream, shard.weights, shard.weights, shard.moment1, shard.moment2, shard.gradients,
                      {lr, o.adam_beta1, o.adam_beta2, o.adam_eps, step + 1}, &squares);
}

template <class T>
double Optimizer<T>::learning_rate(Group group) const {
  switch (group) {
    case Group::matrix:
      return config_.optimizer.muon_lr;
    case Group::embedding:
      return config_.optimizer.lr_embedding;
    case Group::head:
      return config_.optimizer.lr_head;
    case Group::skip:
      return config_.optimizer.lr_skip;
    default:
      return config_.optimizer.lr_scalar;
  }
}

template <class T>
void Optimizer<T>::gather_weights() {
  for (const Shard& shard : shards_) {
    comm_.all_gather(weights_.subspan(shard.bucket.offset, shard.bucket.size()), shard.bounds);
  }
}

template <class T>
std::vector<Slab<T>> Optimizer<T>::slabs() {
  std::vector<Slab<T>> slabs;
  for (Shard& shard : shards_) {
    const std::size_t first = shard.bucket.offset + shard.bounds[comm_.rank()];
    for (const OwnedRows& rows : table_.owned(shard.bucket, comm_.rank(), comm_.size())) {
      const auto add = [&](const char* group, std::span<T> owned) {
        const std::size_t size = rows.row_count * rows.cols;
        slabs.push_back({std::string(group) + rows.parameter->name, rows.total_rows, rows.cols, rows.first_row,
                         rows.row_count, size == 0 ? std::span<T>() : owned.subspan(rows.offset - first, size)});
      };
      add("/weights/", shard.weights);
      if (shard.bucket.group == Group::matrix) {
        add("/muon/momentum/", shard.moment1);
      } else {
        add("/adam/m/", shard.moment1);
        add("/adam/v/", shard.moment2);
      }
    }
  }
  return slabs;
}

template <class T>
std::size_t Optimizer<T>::state_bytes(const ParameterTable& table, int ranks) {
  std::size_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    most = std::max(most, state_size(table, rank, ranks) * sizeof(T) + workspace_size<T>(table, rank, ranks));
  }
  return most;
}

template <class T>
std::size_t Optimizer<T>::bytes_sent_per_step(const ParameterTable& table, int ranks) {
  // A reduce-scatter and an all-gather of every parameter each send all but the own part.
  return 2 * table.size() * sizeof(T) * (ranks - 1) / ranks;
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace nanorun
