#include "src/run/dry_run.hpp"

#include <string>
#include <utility>
#include <vector>

#include "src/data/run_data.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/run/dry_run_start.hpp"
#include "src/run/log.hpp"
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

}  // namespace

void plan_training(const Config& config, int ranks, PlanFormat format) {
  check_config(config, ranks);
  require_possible_paths(config);
  const NodeLayout layout = NodeLayout::consecutive(ranks, config.comm.ranks_per_node);
  const ParameterTable table(config.model, layout.nodes());
  const TrainingPlan plan = plan_of(config, table, layout);
  const DryRunStart start = plan_start(config, ranks, table);
  const std::vector<std::string> remarks = remarks_on(config, table, start);
  if (format == PlanFormat::json) {
    write_output(plan_json(config, table, plan, remarks));
  } else {
    std::string text = to_toml(config) + "\n" + plan_text(config, table, plan);
    for (const std::string& line : remarks) text += line + "\n";
    write_output(text);
  }
  if (start.refusal) throw *start.refusal;
}

}  // namespace nanorun
