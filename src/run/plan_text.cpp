#include "src/run/plan_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "src/base/build.hpp"
#include "src/base/text.hpp"
#include "src/config/schedule.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/optimizer/update_rule.hpp"
#include "src/run/checkpoint.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::ordered_json;

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
  for (const auto& [name, bytes] : memory.terms()) json[name] = static_cast<std::uint64_t>(bytes);
  json["total"] = static_cast<std::uint64_t>(memory.total());
  return json;
}

Json level_json(double messages, double bytes) {
  return {{"messages", messages}, {"bytes", static_cast<std::uint64_t>(bytes)}};
}

Json sending_json(const PlannedSending& sending) {
  return {{"inside", level_json(sending.messages_inside, sending.bytes_inside)},
          {"between", level_json(sending.messages_between, sending.bytes_between)}};
}

Json sent_json(const StepSending& sending) {
  Json json = sending_json(sending.all);
  json["reduce_scatter"] = sending_json(sending.reduce_scatter);
  json["all_gather"] = sending_json(sending.all_gather);
  return json;
}

Json stages_json(const std::vector<StagePlan>& stages) {
  Json list = Json::array();
  for (const StagePlan& stage : stages) {
    Json& json = list.emplace_back(
        Json{{"steps", stage.steps}, {"tokens_per_step", stage.tokens}, {"flops_per_step", stage.flops}});
    if (stage.all_head_rows > 0) {
      json["head_gradient"] = {{"rows", stage.head_rows}, {"bytes", static_cast<std::uint64_t>(stage.head_bytes)}};
    }
    if (stage.step_seconds > 0) json["predicted_step_seconds"] = stage.step_seconds;
    if (!stage.unknown.empty()) json["not_predicted"] = stage.unknown;
  }
  return list;
}

Json matrices_json(const std::vector<MatrixPlan>& matrices) {
  Json list = Json::array();
  for (const MatrixPlan& shape : matrices) {
    list.push_back(
        {{"shape", {shape.rows, shape.cols}}, {"count", shape.count}, {"ranks_without", shape.ranks_without}});
  }
  return list;
}

/// Lines of a label and a value.
class Rows {
 public:
  void add(const std::string& what, const std::string& value) { text_ += fmt::format("{:<32} {}\n", what, value); }
  void bytes(const std::string& what, double value) { add(what, in_units(value, "B", 1024)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_ranks(Rows& rows, const TrainingPlan& plan) {
  rows.add("ranks", std::to_string(plan.ranks));
  if (plan.ranks == 1) return;
  const bool even = plan.nodes * plan.ranks_per_node == plan.ranks;
  rows.add("nodes", fmt::format("{} of {}{} ranks ({})", plan.nodes, even ? "" : "at most ", plan.ranks_per_node,
                                plan.nodes_from));
}

void add_memory(Rows& rows, const TrainingPlan& plan) {
  const MemoryPlan& memory = plan.memory;
  rows.bytes("memory per rank", memory.total());
  rows.bytes("  weights", memory.weights);
  rows.bytes("  gradients", memory.gradients);
  rows.bytes("  optimizer state and scratch", memory.optimizer);
  rows.bytes("  activations", memory.activations);
  rows.bytes("  buffers of collectives", memory.collectives);
  if (memory.runtime > 0) rows.bytes("  CUDA and cuBLAS, at most", memory.runtime);
  if (plan.available > 0) {
    rows.bytes("memory that a rank has", plan.available);
  } else if (memory.runtime > 0) {
    rows.add("memory that a rank has", fmt::format("not known, as {}: name it by --memory, such as --memory 24GiB",
                                                   plan.driver_is_old ? "the driver is too old" : "no GPU is here"));
  }
}

void add_work(Rows& rows, const Config& config, const TrainingPlan& plan) {
  if (config.stage.empty()) {
    rows.add("tokens per step", std::to_string(plan.stages.front().tokens));
    rows.add("FLOPs per step, widest window", in_units(plan.stages.front().flops, "FLOP"));
  } else {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const StagePlan& stage = plan.stages[i];
      rows.add(fmt::format("stage {}, {} steps", i, stage.steps),
               fmt::format("{} tokens and {} per step", stage.tokens, in_units(stage.flops, "FLOP")));
    }
    rows.add("tokens of all steps", std::to_string(plan.tokens));
  }
  for (const MatrixPlan& shape : plan.matrices) {
    if (shape.ranks_without == 0) continue;
    rows.add(fmt::format("own no {} x {} matrix", shape.rows, shape.cols),
             fmt::format("{} of {} ranks", shape.ranks_without, plan.ranks));
  }
}

/// What the rank that sends most sends.
void add_sending(Rows& rows, const TrainingPlan& plan) {
  const PlannedSending& sending = plan.sending.all;
  if (plan.ranks > 1) {
    const double messages = sending.messages_inside + sending.messages_between;
    rows.add("messages per rank and step", fmt::format("{:.0f}", messages));
  }
  if (plan.nodes > 1) rows.add("  to other nodes", fmt::format("{:.0f}", sending.messages_between));
  rows.bytes("bytes sent per rank and step", sending.bytes());
  if (plan.nodes > 1) rows.bytes("  bytes to other nodes", sending.bytes_between);
}

/// Of the LM head, in decks that have candidates.
void add_head_rows(Rows& rows, const Config& config, const TrainingPlan& plan) {
  if (plan.ranks == 1 || most_candidates(config) == 0) return;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    const bool all = stage.head_rows == stage.all_head_rows;
    rows.add(fmt::format("  head's gradient, stage {}", i),
             fmt::format("{}{}, {}{} rows", all ? "" : "at most ", in_units(stage.head_bytes, "B", 1024),
                         all ? "all " : fmt::format("{} of ", stage.head_rows), stage.all_head_rows));
  }
}

/// A step of each stage, where machines are given.
void add_prediction(Rows& rows, const Config& config, const TrainingPlan& plan) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    const std::string what = config.stage.empty() ? "predicted step" : fmt::format("predicted step of stage {}", i);
    if (stage.step_seconds > 0) {
      rows.add(what, fmt::format("{:.4g} ms; the study was off by up to {:.0f} %", 1e3 * stage.step_seconds,
                                 100 * stage.step_error));
    } else if (!stage.unknown.empty()) {
      rows.add(what, "not known: " + stage.unknown);
    }
  }
}

}  // namespace

std::string plan_text(const Config& config, const ParameterTable& table, const TrainingPlan& plan) {
  Rows rows;
  add_ranks(rows, plan);
  rows.add("parameters", fmt::format("{} ({})", table.size(), in_units(static_cast<double>(table.size()), "")));
  add_memory(rows, plan);
  add_work(rows, config, plan);
  add_sending(rows, plan);
  add_head_rows(rows, config, plan);
  add_prediction(rows, config, plan);
  return rows.text();
}

std::string plan_json(const Config& config, const ParameterTable& table, const TrainingPlan& plan,
                      const std::vector<std::string>& remarks) {
  Json json = {{"format", "nanorun plan"},
               {"format_version", 1},
               {"version", build().version},
               {"commit", build().commit},
               {"ranks", plan.ranks},
               {"nodes", plan.nodes},
               {"ranks_per_node", plan.ranks_per_node},
               {"nodes_from", plan.nodes_from},
               {"model", model_fingerprint(table.layout())},
               {"parameters", table.size()},
               {"memory_bytes", memory_json(plan.memory)},
               {"stages", stages_json(plan.stages)},
               {"tokens", plan.tokens},
               {"work", Json::object()},
               {"matrices", matrices_json(plan.matrices)},
               {"sent_bytes", static_cast<std::uint64_t>(plan.sending.all.bytes())},
               {"sent", sent_json(plan.sending)},
               {"warnings", Json::array()},
               {"notes", Json::array()},
               {"buckets", buckets_json(config, table)},
               {"deck", to_toml(config)}};
  if (plan.available > 0) json["available_bytes"] = static_cast<std::uint64_t>(plan.available);
  if (config.stage.empty() && plan.stages.front().step_seconds > 0)
    json["predicted_step_seconds"] = plan.stages.front().step_seconds;
  for (const auto& [rule, work] : plan.work) json["work"][rule] = work;
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
