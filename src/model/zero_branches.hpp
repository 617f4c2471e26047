#pragma once
// Branches (what attention or the MLP adds to a stream) that are exactly zero, or have a factor of exactly zero.
//
// The forward pass does not store an implied branch (BlockPlan::attention_is_implied, mlp_is_implied): the backward
// pass recovers it as the sum minus the sum's other terms. If the branch is zero, the difference is rounding error,
// which would become the gradient of the branch's factor. If the factor is zero, the sum holds nothing of the branch.
// In both cases the backward pass computes the branch anew for its mix to read, until an update has made branch and
// factor nonzero.

#include <span>

#include "kernels/ops.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"
#include "src/model/stream_mixes.hpp"

namespace nanorun {

template <class T>
class ZeroBranches {
 public:
  ZeroBranches(const Parameters<T>& parameters, const Weights<T>& weights, const StreamMixes<T>& mixes)
      : parameters_(parameters), weights_(weights), mixes_(mixes) {}

  /// Sets recomputes_attention_out and recomputes_mlp_out in the blocks of a training sequence, whose forward pass has
  /// been enqueued. Waits for the device where the weights have been replaced, or a branch was zero before.
  void mark(kernels::Stream stream, Activations<T>& a);

 private:
  bool is_zero_branch(kernels::Stream stream, int layer, const char* in, const char* out,
                      std::span<const ops::LearnedScalar<T>> factors) const;
  bool is_zero(kernels::Stream stream, const std::string& matrices) const;
  void look(kernels::Stream stream, const std::vector<BlockPlan>& plans);

  struct Zeros {
    bool attention = false, mlp = false;
  };
  const Parameters<T>& parameters_;
  const Weights<T>& weights_;
  const StreamMixes<T>& mixes_;
  std::vector<Zeros> zeros_;  ///< by layer
  bool any_ = false;
  long seen_ = -1;  ///< Weights::replaced() at the last look
};

}  // namespace nanorun
