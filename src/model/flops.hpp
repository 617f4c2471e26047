#pragma once
// The work of a step, for MFU and figures of merit.

#include <vector>

#include "src/config/config.hpp"
#include "src/model/block_plan.hpp"
#include "src/model/params.hpp"

namespace nanorun {

class Flops {
 public:
  /// The config outlives it.
  Flops(const Config& config, const ParameterTable& table);

  /// Floating-point operations of the forward and backward pass over one training sequence of a step: 6 per token for
  /// each element of the matrices, without dead rows, and of the LM head (of its candidates alone,
  /// src/data/candidates.hpp), plus those of attention within its windows on the dims that Q, K and V have. Attention
  /// counts as if the sequence were one document.
  double per_sequence(long step) const;
  /// The part of it that does not depend on windows: 6 N D, where N elements of the matrices and the LM head meet D
  /// tokens (J. Kaplan et al., Scaling Laws for Neural Language Models, 2020).
  double per_sequence_6nd(long step) const;

 private:
  const Config& config_;
  std::vector<BlockPlan> blocks_;
  double weights_ = 0;  ///< elements of the matrices
};

}  // namespace nanorun
