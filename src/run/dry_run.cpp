#include "src/run/dry_run.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/data/run_data.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/averaged_rows.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/dry_run_start.hpp"
#include "src/run/log.hpp"
#include "src/run/machine_file.hpp"
#include "src/run/memory_limit.hpp"
#include "src/run/plan_text.hpp"
#include "src/run/run_paths.hpp"
#include "src/run/training_plan.hpp"

namespace nanorun {

namespace {

/// Remarks on groups of tensors and averages, on the weights to begin with, and on the data: warnings, and how packed
/// documents fill the steps.
std::vector<std::string> remarks_on(const Config& config, const ParameterTable& table, const DryRunStart& start,
                                    const DataRemarks& data) {
  std::vector<std::string> lines = group_warnings(config, table);
  const std::vector<std::string> averages = average_warnings(config, table);
  for (const auto* const more : {&averages, &start.lines, &data.lines})
    lines.insert(lines.end(), more->begin(), more->end());
  return lines;
}

/// Bytes of the first device; 0 where none is there, and in the CPU build.
double memory_of_this_machine() { return ops::device_count() == 0 ? 0 : static_cast<double>(ops::device_memory(0)); }

struct RanksPerNode {
  int ranks;         ///< 0: all
  const char* from;  ///< what says so
};

RanksPerNode ranks_per_node(const Config& config, const DryRun& dry_run) {
  constexpr int usual = ops::on_host ? 0 : 8;
  if (dry_run.ranks_per_node) return {*dry_run.ranks_per_node, "--ranks-per-node"};
  if (config.comm.ranks_per_node > 0) return {config.comm.ranks_per_node, "comm.ranks_per_node"};
  return {usual, "by default"};
}

}  // namespace

void plan_training(const Config& config, const DryRun& dry_run) {
  check_config(config, dry_run.ranks);
  check_group_rules(config);
  require_possible_paths(config);
  const RanksPerNode nodes = ranks_per_node(config, dry_run);
  const NodeLayout layout = NodeLayout::consecutive(dry_run.ranks, nodes.ranks);
  const ParameterTable table = parameter_table(config, layout.nodes());
  TrainingPlan plan = plan_of(config, table, layout);
  plan.nodes_from = nodes.from;
  plan.available = dry_run.memory.value_or(memory_of_this_machine());
  std::vector<Machine> machines;
  for (const std::string& path : dry_run.machines) machines.push_back(read_machine(path));
  predict_steps(machines, plan, model_fingerprint(table.layout()), config.train.sequences);
  const DryRunStart start = plan_start(config, dry_run.ranks, table);
  const DataRemarks data = data_remarks(config, start.data);
  const std::vector<std::string> remarks = remarks_on(config, table, start, data);
  if (dry_run.format == PlanFormat::json) {
    write_output(plan_json(config, table, plan, remarks));
  } else {
    std::string text = to_toml(config) + "\n" + plan_text(config, table, plan);
    for (const std::string& line : remarks) text += line + "\n";
    write_output(text);
  }
  const std::string shortage = memory_shortage(config, plan.memory, plan.available);
  if (!shortage.empty()) throw Error(ExitCode::usage, shortage);
  for (const std::optional<Error>& refusal : {data.refusal, start.refusal})
    if (refusal) throw *refusal;
}

}  // namespace nanorun
