#pragma once
// model.tied_head: LM head and embedding are one parameter up to the update at step train.untie_step. Both have memory
// of their own all along, with the same rows, of which each rank owns the same. While they are tied the head is updated
// with the gradients of both, and the embedding becomes a copy of it.

#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/owned_bucket.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class TiedHead {
 public:
  /// All outlive it.
  TiedHead(const Config& config, const ParameterTable& table, const std::vector<OwnedBucket<T>>& buckets);

  /// Whether the update at the end of a step is one of both.
  bool tied(long step) const;
  const OwnedBucket<T>& head() const { return *head_; }
  const OwnedBucket<T>& embedding() const { return *embedding_; }

  /// Before the update: moves the embedding's gradients to the head's, in the owned parts.
  void take_gradients(kernels::Stream stream) const;
  /// After the update of a step: gives the embedding the head's weights, and with the last tied update its state.
  void copy_weights(kernels::Stream stream, long step) const;

 private:
  const Config& config_;
  const OwnedBucket<T>*head_, *embedding_;
};

}  // namespace nanorun
