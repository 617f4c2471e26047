#pragma once
// A bucket as one rank sees it: the part that it owns, with masters, gradients and state; and the memory of the whole
// bucket, in which gradients are summed and weights are gathered.

#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/optimizer/state_span.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

/// Consecutive elements with the same hyperparameters.
struct Segment {
  Hyperparameters hyper;
  std::size_t first, size;  ///< elements of the owned part
};
/// `tensors`: a rank's rows of each tensor of a bucket.
std::vector<Segment> segments_of(const Config& config, const std::vector<OwnedRows>& tensors);

/// Masters and state of one rank's part of a bucket.
template <class T>
struct BucketState {
  StateSpan<T> master;              ///< empty where the weights are their own masters
  std::vector<StateSpan<T>> state;  ///< as UpdateRule::state() lists them, each of all tensors of the bucket

  /// Takes the memory; only counts where the allocator does. `tensors`: the rank's rows of each tensor.
  BucketState(kernels::WorkspaceAllocator& allocator, const Config& config, const Bucket& bucket,
              const std::vector<OwnedRows>& tensors, const UpdateRule<T>& rule);
};

template <class T>
struct OwnedBucket {
  using Master = kernels::acc_t<T>;

  Bucket bucket;
  std::size_t index = 0;  ///< among the table's buckets
  UpdateRule<T>* rule = nullptr;
  Bounds bounds;                   ///< parts of all ranks, relative to Bucket::offset
  std::vector<OwnedRows> tensors;  ///< this rank's rows of each tensor

  // The whole bucket, one span for each kind of memory; empty where it has none of it.
  std::span<Master> all_gradients;
  std::span<T> all_weights;       ///< what GEMMs and lookups read
  std::span<Master> all_scalars;  ///< learned scalars

  // The owned part. Learned scalars are their own masters; so are weights where T is Master, or where the deck asks for
  // masters in bf16 and T is bf16.
  std::vector<Segment> segments;
  std::span<Master> gradients;
  std::span<T> weights;  ///< part of all_weights: the masters in type T
  StateSpan<T> master;
  std::vector<StateSpan<T>> state;  ///< as UpdateRule::state() lists them

  bool updated = false;  ///< in this step, and on its way to the other ranks

  /// The part of a rank: its first element, relative to Bucket::offset, and its size.
  std::size_t begin(int rank) const { return bounds[rank]; }
  std::size_t size(int rank) const { return bounds[rank + 1] - bounds[rank]; }
  /// Makes the weights those of the masters.
  void round_weights(kernels::Stream stream) const;
  /// Rounds to bf16 what the deck wants in bf16 and a wider type holds.
  void round_state(kernels::Stream stream) const;
};

}  // namespace nanorun
