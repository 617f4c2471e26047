#pragma once
// What a run would need, counted from its deck before it begins: memory, work and traffic, and the tensors of its
// model.

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Bytes on each rank.
struct MemoryPlan {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;  ///< state and scratch
  double activations = 0;
  double collectives = 0;  ///< buffers of collectives
  double runtime = 0;      ///< CUDA and cuBLAS, at most; 0 in the CPU build
  double total() const { return weights + gradients + optimizer + activations + collectives + runtime; }
};

/// Consecutive steps of equal work.
struct StagePlan {
  long steps = 0;
  std::uint64_t tokens = 0;  ///< tokens of a step, on all ranks together
  double flops = 0;          ///< FLOPs of a step, on all ranks together
};

struct TrainingPlan {
  int ranks = 1;
  MemoryPlan memory;
  std::vector<StagePlan> stages;  ///< one without stages in the deck, with the FLOPs of the widest window
  std::uint64_t tokens = 0;       ///< tokens of all steps
  /// Bytes that a rank sends in a step, the mean over the steps of an optimizer.adam_period.
  double sent_bytes = 0;
};

/// Plan of a deck that check_config() has accepted for `ranks` ranks.
TrainingPlan plan_of(const Config& config, const ParameterTable& table, int ranks);

/// For people: a line for each figure.
std::string plan_text(const Config& config, const ParameterTable& table, const TrainingPlan& plan);

/// For programs: JSON with the figures of the plan, the resolved deck, the tensors of the model with the buckets in
/// which they travel, and `remarks`. Remarks that begin with "warning: " are listed as warnings. docs/running.md
/// describes the fields.
std::string plan_json(const Config& config, const ParameterTable& table, const TrainingPlan& plan,
                      const std::vector<std::string>& remarks);

}  // namespace nanorun
