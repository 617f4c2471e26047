#pragma once
// Weights and state of the optimizer in host memory, as checkpoints read and write them.

#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/base/slab.hpp"
#include "src/optimizer/owned_bucket.hpp"
#include "src/optimizer/state_span.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class OptimizerSlabs {
 public:
  using Master = kernels::acc_t<T>;

  /// Config and buckets outlive it. The first of the calls below allocates host memory where ops work on a device.
  OptimizerSlabs(const Config& config, const std::vector<OwnedBucket<T>>& buckets, kernels::Stream stream)
      : config_(config), buckets_(buckets), stream_(stream) {}

  /// The slabs of all owned parts: masters, state, gradients of a rule with UpdateRule::gradient_prefix(), averages.
  /// Their data is what download() last brought, or what the caller writes to it.
  std::vector<Slab<Master>> slabs();
  /// Brings the data of the slabs up to date. Waits for the device.
  void download();
  /// Makes masters, state, gradients and averages those of the slabs, rounded to their formats.
  void upload();

 private:
  /// The tensors that checkpoints hold for a bucket under one prefix.
  struct Stored {
    std::vector<StateTensor> tensors;  ///< one after another in the elements
    HostStateSpan<T> elements;
  };
  struct StoredAverage {
    const BucketAverage<T>& average;
    HostView<Master> values;
  };
  struct StoredBucket {
    std::vector<Stored> tensors;
    std::vector<StoredAverage> averages;
  };
  std::vector<Stored> stored(const OwnedBucket<T>& owned) const;
  static std::vector<StoredAverage> stored_averages(const OwnedBucket<T>& owned);
  std::vector<StoredBucket>& all();

  const Config& config_;
  const std::vector<OwnedBucket<T>>& buckets_;
  kernels::Stream stream_;
  std::vector<StoredBucket> stored_;  ///< by bucket; empty before the first call
};

}  // namespace nanorun
