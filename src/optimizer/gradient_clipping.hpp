#pragma once
// optimizer.clip_norm: gradients are scaled so that their global norm is at most this (kernels/optimizer/clip.hpp).
// Each rank adds up the squares of the parts that it owns, the ranks exchange these sums, and each forms the same
// factor from them, in the order of the parts. Sums and factor stay on the device, so the host waits for nothing.

#include <span>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/measure/trace.hpp"
#include "src/optimizer/bucket_transfers.hpp"
#include "src/optimizer/owned_bucket.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class GradientClipping {
 public:
  /// Collective. All outlive it; the communicator is closed before it ends. Without optimizer.clip_norm nothing is
  /// allocated, and no other function may be called.
  GradientClipping(const Config& config, TensorComm& comm, kernels::Stream stream);
  /// Whether the deck clips.
  explicit operator bool() const { return clip_norm_ > 0; }

  /// Collective. Scales the gradients of all buckets, whose owned parts hold the sums of all ranks.
  void apply(Trace& trace, std::span<const OwnedBucket<T>> buckets, BucketTransfers<T>& transfers);

  /// Enqueues the copy of the squares to the host.
  void collect() { squares_.collect(stream_); }
  /// The collected sum of squares of this rank's part, before it was scaled: of gradients of the step's mean loss over
  /// all sequences.
  double squares() const { return squares_.value(comm_.part()); }

  /// Bytes of device memory.
  static std::size_t bytes(const Config& config, int ranks);

 private:
  std::span<double> of_parts() const { return {squares_.device(), static_cast<std::size_t>(comm_.size())}; }

  double clip_norm_, gradient_scale_;
  TensorComm& comm_;
  kernels::Stream stream_;
  RunningSum squares_;  ///< by part
  TensorArena<kernels::acc_t<T>> factor_;
};

}  // namespace nanorun
