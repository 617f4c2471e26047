#pragma once
// What a run would need, counted from its deck before it begins: memory, work and traffic, and the tensors of its
// model.

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/node_layout.hpp"
#include "src/comm/traffic.hpp"
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

/// What a rank sends in a step to others of its node and to other nodes: means over the steps of an
/// optimizer.adam_period.
struct PlannedSending {
  double messages_inside = 0, bytes_inside = 0, messages_between = 0, bytes_between = 0;

  double bytes() const { return bytes_inside + bytes_between; }
  void add(const LevelTraffic& traffic, double share = 1);
  /// Makes each number at least that of another.
  void raise_to(const PlannedSending& other);
};

struct TrainingPlan {
  int ranks = 1, nodes = 1;
  MemoryPlan memory;
  std::vector<StagePlan> stages;  ///< one without stages in the deck, with the FLOPs of the widest window
  std::uint64_t tokens = 0;       ///< tokens of all steps
  PlannedSending sending;         ///< on the rank that sends most, number by number
};

/// Plan of a deck that check_config() has accepted for the number of ranks.
TrainingPlan plan_of(const Config& config, const ParameterTable& table, const NodeLayout& layout);

/// For people: a line for each figure.
std::string plan_text(const Config& config, const ParameterTable& table, const TrainingPlan& plan);

/// For programs: JSON with the figures of the plan, the resolved deck, the tensors of the model with the buckets in
/// which they travel, and `remarks`. Remarks that begin with "warning: " are listed as warnings. docs/running.md
/// describes the fields.
std::string plan_json(const Config& config, const ParameterTable& table, const TrainingPlan& plan,
                      const std::vector<std::string>& remarks);

}  // namespace nanorun
