#pragma once
// What a run would need, counted from its deck before it begins: memory, work and traffic.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/node_layout.hpp"
#include "src/comm/traffic.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Bytes of a weight as the ops read it, a learned scalar or an element of a tensor.
std::size_t weight_bytes(bool scalar);

/// Bytes on each rank.
struct MemoryPlan {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;  ///< state and scratch
  double activations = 0;
  double collectives = 0;  ///< buffers of collectives
  double runtime = 0;      ///< CUDA and cuBLAS, at most; 0 in the CPU build
  /// All of them, by their names in the plan's JSON.
  std::vector<std::pair<std::string, double>> terms() const;
  double total() const;
};

/// Consecutive steps of equal work.
struct StagePlan {
  long steps = 0;
  std::uint64_t tokens = 0;  ///< tokens of a step, on all ranks together
  double flops = 0;          ///< FLOPs of a step, on all ranks together
  // Of the LM head's gradient, among several ranks. With candidates some of its rows travel.
  std::size_t head_rows = 0, all_head_rows = 0;  ///< rows that travel from a rank, at most
  double head_bytes = 0;                         ///< bytes that the rank sends which sends most
  // Where machines are given:
  double step_seconds = 0;  ///< predicted; 0: `unknown` says why not
  double step_error = 0;    ///< largest relative error of the study that predicts it
  std::string unknown{};
};

/// What a rank sends in a step to others of its node and to other nodes: means over the steps of an
/// optimizer.adam_period, and over the stages if these have candidates.
struct PlannedSending {
  double messages_inside = 0, bytes_inside = 0, messages_between = 0, bytes_between = 0;

  double bytes() const { return bytes_inside + bytes_between; }
  PlannedSending operator+(const PlannedSending& other) const;
  void add(const LevelTraffic& traffic, double share = 1);
  /// Makes each number at least that of another.
  void raise_to(const PlannedSending& other);
};

/// What ranks send for all tensors, each on the rank that sends most, number by number.
struct StepSending {
  PlannedSending reduce_scatter;  ///< gradients
  PlannedSending all_gather;      ///< weights
  PlannedSending all;             ///< both
};

/// Matrices of one shape or its transpose, which ranks own whole.
struct MatrixPlan {
  int rows = 0, cols = 0;  ///< rows <= cols
  std::size_t count = 0;
  int ranks_without = 0;  ///< ranks that own none of them
};

struct TrainingPlan {
  int ranks = 1, nodes = 1;
  int ranks_per_node = 1;    ///< of the fullest node
  std::string nodes_from{};  ///< the option or key that says how many ranks a node has
  MemoryPlan memory;
  double available = 0;           ///< bytes of memory that a rank has; 0: not known
  bool driver_is_old = false;     ///< so that it names no GPU
  std::vector<StagePlan> stages;  ///< one without stages in the deck, with the FLOPs of the widest window
  std::uint64_t tokens = 0;       ///< tokens of all steps
  std::vector<std::pair<std::string, double>> work;  ///< by name of a rule: UpdateRule::work() of the busiest rank
  std::vector<MatrixPlan> matrices;
  StepSending sending;
};

/// The part of the plan that says what a rank needs.
MemoryPlan memory_of(const Config& config, const ParameterTable& table, const NodeLayout& layout);

/// Plan of a deck that check_config() has accepted for the number of ranks.
TrainingPlan plan_of(const Config& config, const ParameterTable& table, const NodeLayout& layout);

}  // namespace nanorun
