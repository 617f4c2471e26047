#include "src/run/training_plan.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/comm/planned_traffic.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/schedule.hpp"
#include "src/model/flops.hpp"
#include "src/model/model.hpp"
#include "src/optimizer/optimizer.hpp"
#include "src/optimizer/touched_rows.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

namespace {

std::vector<StagePlan> work_of_stages(const Config& config, const ParameterTable& table) {
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

/// The most rows of a table in which a rank has gradients at a step: of lookup tables one for each token. 0: its whole
/// gradient travels.
std::size_t rows_of(const Config& config, const Bucket& bucket, int ranks, long step) {
  if (bucket.group == Group::lm_head) {
    const std::size_t rows = lm_head_rows(config, step, ranks);
    return rows < bucket.units ? rows : 0;
  }
  if (bucket.lookup == Lookup::none) return 0;
  const std::size_t tokens =
      static_cast<std::size_t>((config.train.sequences + ranks - 1) / ranks) * longest_length(config);
  return std::min(bucket.units, tokens);
}

/// What each rank sends of a bucket's gradients at a step.
std::vector<LevelTraffic> gradients_of(const Config& config, const Bucket& bucket, const NodeLayout& layout,
                                       const PlannedTraffic& traffic, long step) {
  const Bounds parts = bucket.bounds(layout);
  const bool rounded = bucket.group == Group::matrix && config.optimizer.matrix_gradients == StateFormat::bf16;
  if (rounded) return traffic.reduce_scatter<Real>(parts);
  const std::size_t travelling = rows_of(config, bucket, layout.ranks(), step);
  if (travelling == 0) return traffic.reduce_scatter(parts);
  Bounds rows;
  for (const std::size_t bound : parts) rows.push_back(bound / bucket.unit_size);
  return traffic.reduce_scatter_rows(rows, travelling, bucket.unit_size);
}

/// As means over the steps: stages differ in the candidates of the LM head.
void add_gradients(std::vector<StepSending>& of_ranks, const Config& config, const Bucket& bucket,
                   const NodeLayout& layout, const PlannedTraffic& traffic) {
  const bool by_stage = bucket.group == Group::lm_head && most_candidates(config) > 0;
  for (int stage = 0; stage < (by_stage ? stage_count(config) : 1); ++stage) {
    const auto [first, end] = stage_steps(config, stage);
    const double share = by_stage ? static_cast<double>(end - first) / static_cast<double>(config.train.steps) : 1;
    const std::vector<LevelTraffic> gradients = gradients_of(config, bucket, layout, traffic, first);
    for (int rank = 0; rank < layout.ranks(); ++rank) of_ranks[rank].reduce_scatter.add(gradients[rank], share);
  }
}

void add_head_rows(std::vector<StagePlan>& stages, const Config& config, const ParameterTable& table,
                   const NodeLayout& layout) {
  if (layout.ranks() == 1) return;
  const Bucket& head = *std::ranges::find(table.buckets(), Group::lm_head, &Bucket::group);
  const PlannedTraffic traffic(layout, config.comm);
  for (int stage = 0; stage < std::ssize(stages); ++stage) {
    const long step = stage_steps(config, stage).first;
    stages[stage].head_rows = lm_head_rows(config, step, layout.ranks());
    stages[stage].all_head_rows = padded_vocabulary(config.model);
    for (const LevelTraffic& sent : gradients_of(config, head, layout, traffic, step)) {
      const auto bytes = static_cast<double>(sent.inside.bytes + sent.between.bytes);
      stages[stage].head_bytes = std::max(stages[stage].head_bytes, bytes);
    }
  }
}

/// Weights travel when they are updated.
StepSending sending_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  const PlannedTraffic traffic(layout, config.comm);
  std::vector<StepSending> of_ranks(layout.ranks());
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.fixed()) continue;
    add_gradients(of_ranks, config, bucket, layout, traffic);
    const std::vector<LevelTraffic> weights = traffic.all_gather(bucket.bounds(layout), weight_bytes(bucket.scalars()));
    const double updates = update_steps(config, table, bucket).per_step(config.train.steps);
    for (int rank = 0; rank < layout.ranks(); ++rank) of_ranks[rank].all_gather.add(weights[rank], updates);
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

MemoryPlan memory_of(const Config& deck, const ParameterTable& table, const NodeLayout& layout) {
  const Config config = computed_config(deck);
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
  std::vector<StagePlan> stages = work_of_stages(config, table);
  add_head_rows(stages, config, table, layout);
  return {.ranks = layout.ranks(),
          .nodes = layout.nodes(),
          .ranks_per_node = layout.seats(),
          .memory = memory_of(config, table, layout),
          .stages = std::move(stages),
          .tokens = static_cast<std::uint64_t>(tokens_before(config, config.train.steps)),
          .work = work_of(table, rules, layout),
          .matrices = matrices_of(table, layout.ranks()),
          .sending = sending_of(config, table, layout)};
}

}  // namespace nanorun
