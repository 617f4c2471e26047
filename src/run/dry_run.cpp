#include "src/run/dry_run.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/context.hpp"
#include "src/data/run_data.hpp"
#include "src/model/fp8_rules.hpp"
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

/// On the device of this machine and its driver: whether a run could use them, and which kernels are planned for.
std::vector<std::string> device_remarks(const Config& config, const RankDevice& device) {
  std::vector<std::string> lines;
  for (const std::string& fault : {driver_fault(device), device_fault(device)})
    if (!fault.empty()) lines.push_back("warning: no run can begin here: " + fault);
  if (!device.kernels.empty())
    lines.push_back(fmt::format("planned for {}, with the kernels for {}", device.name, device.kernels));
  if (const std::string remark = fp8_remark(config); !remark.empty()) lines.push_back(remark);
  return lines;
}

/// Remarks on the device, on groups of tensors and averages, on the weights to begin with, and on the data: warnings,
/// and how packed documents fill the steps.
std::vector<std::string> remarks_on(const Config& config, const ParameterTable& table, const RankDevice& device,
                                    const DryRunStart& start, const DataRemarks& data) {
  std::vector<std::string> lines = device_remarks(config, device);
  const std::vector<std::string> groups = group_warnings(config, table), averages = average_warnings(config, table);
  for (const auto* const more : {&groups, &averages, &start.lines, &data.lines})
    lines.insert(lines.end(), more->begin(), more->end());
  return lines;
}

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
  const RankDevice device = device_of_this_host();
  plan.available = dry_run.memory.value_or(static_cast<double>(device.memory));
  plan.driver_is_old = !driver_fault(device).empty();
  std::vector<Machine> machines;
  for (const std::string& path : dry_run.machines) machines.push_back(read_machine(path));
  predict_steps(machines, plan, model_fingerprint(table.layout()), config.train.sequences);
  const DryRunStart start = plan_start(config, dry_run.ranks, table);
  const DataRemarks data = data_remarks(config, start.data);
  const std::vector<std::string> remarks = remarks_on(config, table, device, start, data);
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
