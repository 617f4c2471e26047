#include "src/run/training_plan.hpp"

#include <algorithm>
#include <numeric>

#include "src/comm/planned_traffic.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/schedule.hpp"
#include "src/model/flops.hpp"
#include "src/model/model.hpp"
#include "src/optimizer/optimizer.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

namespace {

std::vector<StagePlan> stages_of(const Config& config, const ParameterTable& table) {
  const Flops flops(config, table);
  const auto plan_at = [&](long steps, long step, long widest) {
    return StagePlan{steps, static_cast<std::uint64_t>(step_tokens(config, step)),
                     config.train.sequences * flops.per_sequence(widest)};
  };
  if (config.stage.empty()) return {plan_at(config.train.steps, 0, config.train.steps)};
  std::vector<StagePlan> stages;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    const auto [first, end] = stage_steps(config, stage);
    stages.push_back(plan_at(end - first, first, first));
  }
  return stages;
}

/// What each rank sends for a bucket. From lookup tables a rank sends only the rows that it has read, at most one for
/// each token.
std::vector<LevelTraffic> gradients_of(const Config& config, const Bucket& bucket, const Bounds& parts,
                                       const PlannedTraffic& traffic, std::size_t tokens) {
  const bool rounded = bucket.group == Group::matrix && config.optimizer.matrix_gradients == StateFormat::bf16;
  if (rounded) return traffic.reduce_scatter<Real>(parts);
  if (bucket.lookup == Lookup::none) return traffic.reduce_scatter(parts);
  Bounds rows;
  for (const std::size_t bound : parts) rows.push_back(bound / bucket.unit_size);
  return traffic.reduce_scatter_rows(rows, std::min(bucket.units, tokens), bucket.unit_size);
}

/// Weights travel when they are updated.
StepSending sending_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  const std::size_t tokens = (config.train.sequences + ranks - 1) / ranks * longest_length(config);
  const PlannedTraffic traffic(layout, config.comm);
  std::vector<StepSending> of_ranks(layout.ranks());
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.fixed()) continue;
    const Bounds parts = bucket.bounds(layout);
    const std::vector<LevelTraffic> gradients = gradients_of(config, bucket, parts, traffic, tokens),
                                    weights = traffic.all_gather(parts, weight_bytes(bucket.scalars()));
    const double updates = update_steps(config, table, bucket).per_step(config.train.steps);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      of_ranks[rank].reduce_scatter.add(gradients[rank]);
      of_ranks[rank].all_gather.add(weights[rank], updates);
    }
  }
  if (config.optimizer.clip_norm > 0) {
    Bounds one_each(ranks + 1);
    std::iota(one_each.begin(), one_each.end(), std::size_t{0});
    const std::vector<LevelTraffic> squares = traffic.all_gather(one_each, sizeof(double));
    for (int rank = 0; rank < layout.ranks(); ++rank) of_ranks[rank].all_gather.add(squares[rank]);
  }
  StepSending most;
  for (const StepSending& own : of_ranks) {
    most.reduce_scatter.raise_to(own.reduce_scatter);
    most.all_gather.raise_to(own.all_gather);
    most.all.raise_to(own.reduce_scatter + own.all_gather);
  }
  return most;
}

std::vector<std::pair<std::string, double>> work_of(const ParameterTable& table, const UpdateRules<Real>& rules,
                                                    const NodeLayout& layout) {
  std::vector<std::pair<std::string, double>> work;
  const std::vector<RankLoad> loads = distinct_loads(table, layout);
  for (const auto& [name, rule] : rules.all()) {
    double most = 0;
    for (const RankLoad& load : loads) most = std::max(most, rule->work(rules.part(table, load, name)));
    if (most > 0) work.emplace_back(traits_of(name).name, most);
  }
  return work;
}

/// The ranks' numbers of matrices of a shape differ by at most one (Bucket::bounds()).
std::vector<MatrixPlan> matrices_of(const ParameterTable& table, int ranks) {
  std::vector<MatrixPlan> shapes;
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.group != Group::matrix) continue;
    const auto [rows, cols] = std::minmax(bucket.rows, bucket.cols);
    // Clang before 16 cannot capture structured bindings.
    const auto same = [rows = rows, cols = cols](const MatrixPlan& shape) {
      return shape.rows == rows && shape.cols == cols;
    };
    auto shape = std::ranges::find_if(shapes, same);
    if (shape == shapes.end()) shape = shapes.insert(shapes.end(), {.rows = rows, .cols = cols});
    shape->count += bucket.units;
  }
  for (MatrixPlan& shape : shapes)
    shape.ranks_without = ranks - static_cast<int>(std::min<std::size_t>(ranks, shape.count));
  return shapes;
}

}  // namespace

std::size_t weight_bytes(bool scalar) { return scalar ? sizeof(kernels::acc_t<Real>) : sizeof(Real); }

void PlannedSending::add(const LevelTraffic& traffic, double share) {
  messages_inside += share * static_cast<double>(traffic.inside.messages);
  bytes_inside += share * static_cast<double>(traffic.inside.bytes);
  messages_between += share * static_cast<double>(traffic.between.messages);
  bytes_between += share * static_cast<double>(traffic.between.bytes);
}

std::vector<std::pair<std::string, double>> MemoryPlan::terms() const {
  return {{"weights", weights},         {"gradients", gradients},     {"optimizer", optimizer},
          {"activations", activations}, {"collectives", collectives}, {"runtime", runtime}};
}

double MemoryPlan::total() const { return weights + gradients + optimizer + activations + collectives + runtime; }

PlannedSending PlannedSending::operator+(const PlannedSending& other) const {
  return {messages_inside + other.messages_inside, bytes_inside + other.bytes_inside,
          messages_between + other.messages_between, bytes_between + other.bytes_between};
}

void PlannedSending::raise_to(const PlannedSending& other) {
  messages_inside = std::max(messages_inside, other.messages_inside);
  bytes_inside = std::max(bytes_inside, other.bytes_inside);
  messages_between = std::max(messages_between, other.messages_between);
  bytes_between = std::max(bytes_between, other.bytes_between);
}

MemoryPlan memory_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  MemoryPlan memory;
  for (const Bucket& bucket : table.buckets()) {
    memory.weights += static_cast<double>(bucket.size() * weight_bytes(bucket.scalars()));
  }
  memory.gradients = static_cast<double>(Gradients<Real>::bytes(config, table));
  memory.optimizer =
      static_cast<double>(Optimizer<Real>::state_bytes(config, table, layout, Model<Real>::idle_bytes(config)));
  memory.activations = static_cast<double>(Model<Real>::memory_bytes(config));
  memory.collectives = static_cast<double>(TensorComm::memory_bytes(layout, config.comm));
  memory.runtime = ops::runtime_bytes;
  return memory;
}

TrainingPlan plan_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  const UpdateRules<Real> rules(config);
  return {.ranks = layout.ranks(),
          .nodes = layout.nodes(),
          .ranks_per_node = layout.seats(),
          .memory = memory_of(config, table, layout),
          .stages = stages_of(config, table),
          .tokens = static_cast<std::uint64_t>(tokens_before(config, config.train.steps)),
          .work = work_of(table, rules, layout),
          .matrices = matrices_of(table, layout.ranks()),
          .sending = sending_of(config, table, layout)};
}

}  // namespace nanorun
