#pragma once
// Muon and Adam over the parameter table. State and update work are sharded: of each bucket a rank owns whole units
// (params.hpp), receives their summed gradients, updates them, and all ranks gather the new weights.

#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/arena.hpp"
#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/params.hpp"
#include "src/trace.hpp"

namespace nanorun {

template <class T>
class Optimizer {
 public:
  /// Weights and gradients are arenas of table.size() elements and outlive the optimizer.
  Optimizer(const Config& config, const ParameterTable& table, std::span<T> weights, std::span<T> gradients,
            Comm& comm);

  /// One update from gradients that each rank has summed over its sequences; zeroes them afterwards. All ranks must
  /// call it. `step` counts from 0.
  void step(kernels::Stream stream, Trace& trace, long step);

  /// Whether in the last step gradients or weights of this rank's part were not finite, or so large that their sum of
  /// squares is not a finite T: norms then come out as infinite and what is divided by them as zero, unseen in the
  /// loss.
  bool overflowed() const { return overflowed_; }

  /// Completes every rank's weights from the owned parts.
  void gather_weights();

  /// Weights and state of the owned units, for checkpoints: /weights/<name>, /muon/momentum/<name>, /adam/m/<name>,
  /// /adam/v/<name>. After reading into them call gather_weights().
  std::vector<Slab<T>> slabs();

  /// Bytes of state and scratch on the rank that owns most.
  static std::size_t state_bytes(const ParameterTable& table, int ranks);
  /// Bytes that a rank sends in one step.
  static std::size_t bytes_sent_per_step(const ParameterTable& table, int ranks);

 private:
  /// A bucket with this rank's part of weights, gradients and state. Adam has two moments, Muon one.
  struct Shard {
    Bucket bucket;
    Bounds bounds;
    std::span<T> weights, gradients, moment1, moment2;
  };

  void update(kernels::Stream stream, Trace& trace, const Shard& shard, long step);
  void update_matrices(kernels::Stream stream, const Shard& shard, long step);
  void update_elements(kernels::Stream stream, const Shard& shard, long step);
  double learning_rate(Group group) const;
  void check_range(kernels::Stream stream, std::span<const T> tensor);

  const Config& config_;
  const ParameterTable& table_;
  std::span<T> weights_, gradients_;
  Comm& comm_;
  TensorArena<T> state_;
  Arena workspace_;
  std::vector<Shard> shards_;
  bool overflowed_ = false;
};

}  // namespace nanorun
