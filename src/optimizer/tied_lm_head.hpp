#pragma once
// model.tied_head: LM head and embedding are one parameter, all along or up to the update at step train.untie_step.
// Each always has its own memory, with the same shape, and a rank owns the same rows of both. While they are tied, the
// LM head is updated with the gradients of both, and the embedding becomes a copy of the LM head.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/owned_bucket.hpp"

namespace nanorun {

/// Whether the update at the end of a step is one of LM head and embedding together.
bool ties_lm_head(const Config& config, long step);

/// T as in Optimizer.
template <class T>
class TiedLmHead {
 public:
  /// All outlive it.
  TiedLmHead(const Config& config, const ParameterTable& table, const std::vector<OwnedBucket<T>>& buckets);

  bool tied(long step) const { return ties_lm_head(config_, step); }
  const OwnedBucket<T>& lm_head() const { return *lm_head_; }
  const OwnedBucket<T>& embedding() const { return *embedding_; }

  /// Before the update: moves the embedding's gradients to the LM head's, in the owned parts.
  void take_gradients(kernels::Stream stream) const;
  /// After the update of a step: gives the embedding the LM head's weights, and with the last tied update its state.
  void copy_weights(kernels::Stream stream, long step) const;

 private:
  const Config& config_;
  const OwnedBucket<T>*lm_head_, *embedding_;
};

}  // namespace nanorun
