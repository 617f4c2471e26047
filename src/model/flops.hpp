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

  /// Floating-point operations of forward and backward pass over one training sequence of a step: 6 for each token and
  /// each element of the matrices and the LM head, and those of attention within its windows. Documents do not shorten
  /// attention here.
  double per_sequence(long step) const;

 private:
  const Config& config_;
  std::vector<BlockPlan> blocks_;
  double weights_ = 0;  ///< elements of the matrices and the LM head
};

}  // namespace nanorun
