#include "src/run/dry_run.hpp"

#include <string>
#include <utility>
#include <vector>

#include "src/data/run_data.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/run/dry_run_start.hpp"
#include "src/run/log.hpp"
#include "src/run/memory_limit.hpp"
#include "src/run/plan_text.hpp"
#include "src/run/run_paths.hpp"
#include "src/run/training_plan.hpp"

namespace nanorun {

namespace {

/// Remarks on groups of tensors, on the weights to begin with, and on the data: warnings, and how packed documents fill
/// the steps.
std::vector<std::string> remarks_on(const Config& config, const ParameterTable& table, const DryRunStart& start) {
  std::vector<std::string> lines = group_warnings(config, table);
  lines.insert(lines.end(), start.lines.begin(), start.lines.end());
  for (std::string& line : data_warnings(config, start.data)) lines.push_back(std::move(line));
  return lines;
}

/// Bytes of the first device; 0 where none is there, and in the CPU build.
double memory_of_this_machine() { return ops::device_count() == 0 ? 0 : static_cast<double>(ops::device_memory(0)); }

NodeLayout layout_of(const Config& config, const DryRun& dry_run) {
  /// Ranks of a node where nothing says it; 0: all.
  constexpr int usual = ops::on_host ? 0 : 8;
  const int ranks_per_node = dry_run.ranks_per_node.value_or(config.comm.ranks_per_node);
  return NodeLayout::consecutive(dry_run.ranks, ranks_per_node > 0 ? ranks_per_node : usual);
}

}  // namespace

void plan_training(const Config& config, const DryRun& dry_run) {
  check_config(config, dry_run.ranks);
  require_possible_paths(config);
  const NodeLayout layout = layout_of(config, dry_run);
  const ParameterTable table(config.model, layout.nodes());
  TrainingPlan plan = plan_of(config, table, layout);
  plan.nodes_from = dry_run.ranks_per_node           ? "--ranks-per-node"
                    : config.comm.ranks_per_node > 0 ? "comm.ranks_per_node"
                                                     : "by default";
  plan.available = dry_run.memory.value_or(memory_of_this_machine());
  const DryRunStart start = plan_start(config, dry_run.ranks, table);
  const std::vector<std::string> remarks = remarks_on(config, table, start);
  if (dry_run.format == PlanFormat::json) {
    write_output(plan_json(config, table, plan, remarks));
  } else {
    std::string text = to_toml(config) + "\n" + plan_text(config, table, plan);
    for (const std::string& line : remarks) text += line + "\n";
    write_output(text);
  }
  const std::string shortage = memory_shortage(config, plan.memory, plan.available);
  if (!shortage.empty()) throw Error(ExitCode::usage, shortage);
  if (start.refusal) throw *start.refusal;
}

}  // namespace nanorun
