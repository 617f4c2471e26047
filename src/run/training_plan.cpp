#include "src/run/training_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "src/base/build.hpp"
#include "src/base/text.hpp"
#include "src/comm/planned_traffic.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/schedule.hpp"
#include "src/model/flops.hpp"
#include "src/model/model.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/optimizer/optimizer.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::ordered_json;

/// Bytes per weight as the ops read them.
std::size_t weight_bytes(bool scalar) { return scalar ? sizeof(kernels::acc_t<Real>) : sizeof(Real); }

MemoryPlan memory_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  MemoryPlan memory;
  for (const Bucket& bucket : table.buckets()) {
    memory.weights += static_cast<double>(bucket.size() * weight_bytes(bucket.scalars()));
  }
  memory.gradients = static_cast<double>(table.gradient_size()) * sizeof(kernels::acc_t<Real>);
  memory.optimizer =
      static_cast<double>(Optimizer<Real>::state_bytes(config, table, layout, Model<Real>::idle_bytes(config)));
  memory.activations = static_cast<double>(Model<Real>::memory_bytes(config));
  memory.collectives = static_cast<double>(TensorComm::memory_bytes(layout, config.comm));
  memory.runtime = ops::runtime_bytes;
  return memory;
}

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

Json sent_json(double messages, double bytes) {
  return {{"messages", messages}, {"bytes", static_cast<std::uint64_t>(bytes)}};
}

/// From lookup tables a rank sends only the rows that it has read, at most one for each token. Weights travel when they
/// are updated.
PlannedSending sending_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  const double tokens = static_cast<double>(config.train.sequences) / layout.ranks() * longest_length(config);
  const UpdateRules<Real> rules(config);
  std::vector<PlannedSending> of_ranks(layout.ranks());
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.fixed()) continue;
    const Bounds parts = bucket.bounds(layout);
    Bounds rows;
    for (const std::size_t bound : parts) rows.push_back(bound / bucket.unit_size);
    const double touched = std::min(static_cast<double>(bucket.units), tokens);
    const double updates = 1.0 / rules.of(bucket.group).period();
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const PlannedTraffic traffic(layout, rank, config.comm);
      of_ranks[rank].add(bucket.lookup == Lookup::none ? traffic.reduce_scatter(parts)
                                                       : traffic.reduce_scatter_rows(rows, touched, bucket.unit_size));
      of_ranks[rank].add(traffic.all_gather(parts, weight_bytes(bucket.scalars())), updates);
    }
  }
  PlannedSending most;
  for (const PlannedSending& own : of_ranks) most.raise_to(own);
  return most;
}

const char* lookup_name(Lookup lookup) {
  if (lookup == Lookup::none) return "none";
  return lookup == Lookup::token ? "token" : "bigram";
}

Json shape_of(const Parameter& parameter) {
  if (parameter.matrices == 1) return {parameter.rows, parameter.cols};
  return {parameter.matrices, parameter.rows, parameter.cols};
}

Json bucket_json(const Config& config, const UpdateRules<Real>& rules, const Bucket& bucket) {
  Json json = {{"rule", traits_of(rule_of(config, bucket.group)).name},
               {"units", bucket.units},
               {"unit_size", bucket.unit_size},
               {"scalars", bucket.scalars()},
               {"lookup", lookup_name(bucket.lookup)},
               {"travels", !bucket.fixed()},
               {"tensors", Json::array()}};
  if (rules.of(bucket.group).batches_shapes()) json["matrix"] = {bucket.rows, bucket.cols};
  return json;
}

Json buckets_json(const Config& config, const ParameterTable& table) {
  const UpdateRules<Real> rules(config);
  Json list = Json::array();
  for (const Bucket& bucket : table.buckets()) {
    Json json = bucket_json(config, rules, bucket);
    for (const Parameter& p : table.parameters()) {
      if (p.offset < bucket.offset || p.offset >= bucket.offset + bucket.size()) continue;
      json["tensors"].push_back(
          {{"name", p.name}, {"shape", shape_of(p)}, {"bytes", p.size() * weight_bytes(bucket.scalars())}});
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json memory_json(const MemoryPlan& memory) {
  Json json;
  for (const auto& [name, bytes] : {std::pair{"weights", memory.weights},
                                    {"gradients", memory.gradients},
                                    {"optimizer", memory.optimizer},
                                    {"activations", memory.activations},
                                    {"collectives", memory.collectives},
                                    {"runtime", memory.runtime},
                                    {"total", memory.total()}}) {
    json[name] = static_cast<std::uint64_t>(bytes);
  }
  return json;
}

}  // namespace

void PlannedSending::add(const LevelTraffic& traffic, double share) {
  messages_inside += share * static_cast<double>(traffic.inside.messages);
  bytes_inside += share * static_cast<double>(traffic.inside.bytes);
  messages_between += share * static_cast<double>(traffic.between.messages);
  bytes_between += share * static_cast<double>(traffic.between.bytes);
}

void PlannedSending::raise_to(const PlannedSending& other) {
  messages_inside = std::max(messages_inside, other.messages_inside);
  bytes_inside = std::max(bytes_inside, other.bytes_inside);
  messages_between = std::max(messages_between, other.messages_between);
  bytes_between = std::max(bytes_between, other.bytes_between);
}

TrainingPlan plan_of(const Config& config, const ParameterTable& table, const NodeLayout& layout) {
  return {.ranks = layout.ranks(),
          .nodes = layout.nodes(),
          .memory = memory_of(config, table, layout),
          .stages = stages_of(config, table),
          .tokens = static_cast<std::uint64_t>(tokens_before(config, config.train.steps)),
          .sending = sending_of(config, table, layout)};
}

std::string plan_text(const Config& config, const ParameterTable& table, const TrainingPlan& plan) {
  std::string text;
  const auto row = [&](const std::string& what, const std::string& value) {
    text += fmt::format("{:<32} {}\n", what, value);
  };
  const auto bytes = [&](const char* what, double value) { row(what, in_units(value, "B", 1024)); };
  row("ranks", std::to_string(plan.ranks));
  row("parameters", fmt::format("{} ({})", table.size(), in_units(static_cast<double>(table.size()), "")));
  bytes("memory per rank", plan.memory.total());
  bytes("  weights", plan.memory.weights);
  bytes("  gradients", plan.memory.gradients);
  bytes("  optimizer state and scratch", plan.memory.optimizer);
  bytes("  activations", plan.memory.activations);
  bytes("  buffers of collectives", plan.memory.collectives);
  if (plan.memory.runtime > 0) bytes("  CUDA and cuBLAS, at most", plan.memory.runtime);
  if (config.stage.empty()) {
    row("tokens per step", std::to_string(plan.stages.front().tokens));
    row("FLOPs per step, widest window", in_units(plan.stages.front().flops, "FLOP"));
  } else {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const StagePlan& stage = plan.stages[i];
      row(fmt::format("stage {}, {} steps", i, stage.steps),
          fmt::format("{} tokens and {} per step", stage.tokens, in_units(stage.flops, "FLOP")));
    }
    row("tokens of all steps", std::to_string(plan.tokens));
  }
  bytes("bytes sent per rank and step", plan.sending.bytes());
  if (plan.nodes > 1) {
    bytes("  to other nodes", plan.sending.bytes_between);
    row("messages to other nodes", fmt::format("{:.0f}", plan.sending.messages_between));
  }
  return text;
}

std::string plan_json(const Config& config, const ParameterTable& table, const TrainingPlan& plan,
                      const std::vector<std::string>& remarks) {
  Json json = {{"format", "nanorun plan"},
               {"format_version", 1},
               {"version", build().version},
               {"commit", build().commit},
               {"ranks", plan.ranks},
               {"nodes", plan.nodes},
               {"parameters", table.size()},
               {"memory_bytes", memory_json(plan.memory)},
               {"stages", Json::array()},
               {"tokens", plan.tokens},
               {"sent_bytes", static_cast<std::uint64_t>(plan.sending.bytes())},
               {"sent",
                {{"inside", sent_json(plan.sending.messages_inside, plan.sending.bytes_inside)},
                 {"between", sent_json(plan.sending.messages_between, plan.sending.bytes_between)}}},
               {"warnings", Json::array()},
               {"notes", Json::array()},
               {"buckets", buckets_json(config, table)},
               {"deck", to_toml(config)}};
  for (const StagePlan& stage : plan.stages) {
    json["stages"].push_back(
        {{"steps", stage.steps}, {"tokens_per_step", stage.tokens}, {"flops_per_step", stage.flops}});
  }
  for (const std::string& remark : remarks) {
    static constexpr std::string_view prefix = "warning: ";
    if (remark.starts_with(prefix)) {
      json["warnings"].push_back(remark.substr(prefix.size()));
    } else {
      json["notes"].push_back(remark);
    }
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace nanorun
