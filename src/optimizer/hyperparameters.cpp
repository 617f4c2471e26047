#include "src/optimizer/hyperparameters.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.hpp"
#include "src/config/config_check.hpp"

namespace nanorun {

namespace {

/// The rate of [optimizer] for a group.
double group_lr(const OptimizerConfig& o, Group group) {
  switch (group) {
    case Group::matrix:
      return o.matrix_rule == MatrixRule::muon ? o.muon_lr : o.lr_matrix;
    case Group::embedding:
      return o.lr_embedding;
    case Group::lm_head:
      return o.lr_head;
    case Group::skip:
      return o.lr_skip;
    case Group::fixed:
      return 0;
    default:
      return o.lr_scalar;
  }
}

}  // namespace

Rule rule_of(const Config& config, Group group) {
  switch (group) {
    case Group::matrix:
      return config.optimizer.matrix_rule == MatrixRule::muon ? Rule::muon : Rule::adam;
    case Group::scalar_matrix:
      return Rule::muon;
    case Group::fixed:
      return Rule::fixed;
    default:
      return Rule::adam;
  }
}

bool matches(const std::string& pattern, const std::string& name) {
  // The last star met takes one character more whenever the rest does not fit.
  std::size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string::npos;
}

namespace {

/// The first group that names a tensor; null where none does.
const GroupConfig* group_of(const Config& config, const std::string& tensor) {
  const auto named = std::ranges::find_if(config.group, [&](const GroupConfig& group) {
    return std::ranges::any_of(group.tensors, [&](const std::string& p) { return matches(p, tensor); });
  });
  return named == config.group.end() ? nullptr : &*named;
}

/// Whether the updates of a tensor may have a period of their own. A tied embedding follows the LM head.
bool may_have_period(const Config& config, const Parameter& parameter) {
  return parameter.group == Group::embedding && !(config.model.tied_head && parameter.name == "embedding");
}

UpdateSteps steps_of_updates(const Config& config, const Parameter& parameter, const GroupConfig* group) {
  if (rule_of(config, parameter.group) != Rule::adam) return {};
  const long period = config.optimizer.adam_period;
  UpdateSteps updates{.period = period, .late_period = period};
  if (group != nullptr && group->period > 0 && may_have_period(config, parameter)) {
    updates.late_period = group->period;
    updates.late_from = group->period_from;
  }
  return updates;
}

}  // namespace

ParameterTable parameter_table(const Config& config, int nodes) {
  return ParameterTable(config.model, nodes, [&](const std::string& tensor) {
    const GroupConfig* const group = group_of(config, tensor);
    return group != nullptr && group->rule == GroupRule::muon;
  });
}

namespace {

/// Tensors of a [[group]] that one of its keys does not suit: the first in the order of the table, and how many.
struct Unfit {
  const Parameter* first = nullptr;
  int count = 0;
  /// "; 2 more tensors of the group", where there are more.
  std::string others(const char* what) const {
    return count < 2 ? "" : fmt::format("; {} more tensor{} of the group {}", count - 1, count > 2 ? "s" : "", what);
  }
};

/// Those tensors of a group for which `unfit(parameter)` holds.
template <class Predicate>
Unfit unfit_tensors(const Config& config, const ParameterTable& table, const GroupConfig& group,
                    const Predicate& unfit) {
  Unfit found;
  for (const Parameter& parameter : table.parameters()) {
    if (group_of(config, parameter.name) != &group || !unfit(parameter)) continue;
    if (found.count++ == 0) found.first = &parameter;
  }
  return found;
}

/// Whether learned scalars are a matrix: they have several rows and columns, or are a gate, which multiplies columns of
/// the stream and may have one row, as that of the smear has.
bool are_matrix(const Parameter& parameter) {
  return parameter.cols > 1 && (parameter.rows > 1 || parameter.name.ends_with("_gate"));
}

/// Why Muon cannot update a tensor; empty where it can.
std::string fault_for_muon(const Config& config, const Parameter& parameter) {
  if (parameter.group == Group::matrix && rule_of(config, parameter.group) != Rule::muon) {
    return "a matrix of the blocks, which optimizer.matrix_rule = \"adam\" updates";
  }
  if (rule_of(config, parameter.group) != Rule::muon) {
    return "neither a matrix of the blocks nor learned scalars of rows and columns";
  }
  if (parameter.group != Group::scalar_matrix) return "";
  const int rows = parameter.rows, cols = parameter.cols;
  if (rows == 1 && cols == 1) return "a single number, which Muon would move by the sign of its momentum";
  if (!are_matrix(parameter)) {
    return fmt::format("a vector of {} numbers; Muon takes gates, and learned scalars of several rows and columns",
                       rows * cols);
  }
  if (kernels::is_scalar_matrix(rows, cols)) return "";
  return fmt::format("{} x {}; Muon takes learned scalars of at most {} elements, the shorter side of at most {}", rows,
                     cols, kernels::max_scalar_matrix, kernels::max_scalar_matrix_side);
}

/// Why the updates of a tensor cannot have a period of their own; empty where they can.
std::string fault_for_period(const Config& config, const Parameter& parameter) {
  if (may_have_period(config, parameter)) return "";
  return parameter.name == "embedding" ? "tied to the LM head (model.tied_head)" : "no lookup table";
}

/// Refuses a key of a group, "rule = ...", for the tensors with a fault.
template <class Fault>
void check_tensors(Rules& rules, const ParameterTable& table, int i, const char* key, const std::string& value,
                   Fault&& fault) {
  const Config& config = rules.config;
  const auto has_fault = [&](const Parameter& parameter) { return !fault(config, parameter).empty(); };
  const Unfit unfit = unfit_tensors(config, table, config.group[i], has_fault);
  if (unfit.count == 0) return;
  const std::string path = fmt::format("group.{}.{}", i, key);
  rules.refuse({path}, "{} = {}: {} is {}{}", path, value, unfit.first->name, fault(config, *unfit.first),
               unfit.others("cannot have it either"));
}

}  // namespace

void check_group_rules(const Config& config) {
  Rules rules{config, {}};
  const ParameterTable table = parameter_table(config);
  for (int i = 0; i < static_cast<int>(config.group.size()); ++i) {
    const GroupConfig& group = config.group[i];
    if (group.rule == GroupRule::muon) check_tensors(rules, table, i, "rule", "\"muon\"", fault_for_muon);
    if (group.period > 0) check_tensors(rules, table, i, "period", fmt::format("{}", group.period), fault_for_period);
  }
  rules.errors.rethrow(ExitCode::usage, Scope::all_ranks);
}

bool takes_master_format(const Config& config, Group group) {
  return traits_of(rule_of(config, group)).takes_master_format || group == Group::scalar_matrix;
}

namespace {

/// A format of [optimizer], unless the group has its own.
void set_format(StateFormat& format, GroupFormat of_group) {
  if (of_group == GroupFormat::automatic) return;
  format = of_group == GroupFormat::bf16 ? StateFormat::bf16 : StateFormat::fp32;
}

}  // namespace

Hyperparameters hyperparameters(const Config& config, const Parameter& parameter) {
  const OptimizerConfig& o = config.optimizer;
  const Rule rule = rule_of(config, parameter.group);
  Hyperparameters hyper{rule, group_lr(o, parameter.group), o.adam_beta1, o.adam_beta2};
  const GroupConfig* const named = group_of(config, parameter.name);
  if (named != nullptr) hyper = {rule, named->lr, named->beta1, named->beta2, named->decay};
  hyper.updates = steps_of_updates(config, parameter, named);
  hyper.master = o.adam_master;
  hyper.moments = o.adam_moments;
  const RuleTraits& traits = traits_of(rule);
  if (traits.read != nullptr) traits.read(config, hyper);
  // While LM head and embedding are tied they are one parameter, which has one format.
  const bool tied = config.model.tied_head && config.train.untie_step >= 0 && parameter.name == "embedding";
  const GroupConfig* const formats = group_of(config, tied ? "head" : parameter.name);
  if (formats != nullptr) {
    set_format(hyper.master, formats->master);
    set_format(hyper.moments, formats->moments);
  }
  if (!takes_master_format(config, parameter.group)) hyper.master = StateFormat::fp32;
  return hyper;
}

UpdateSteps update_steps(const Config& config, const ParameterTable& table, const Bucket& bucket) {
  const std::vector<Parameter>& all = table.parameters();
  return hyperparameters(config, *std::ranges::find(all, bucket.offset, &Parameter::offset)).updates;
}

namespace {

/// A number of a [[group]] that Adam alone reads.
struct AdamsNumber {
  const char* key;
  double GroupConfig::*value;
  const char* of_muon;  ///< what Muon has in its place
};
constexpr AdamsNumber adams_numbers[] = {
    {"beta1", &GroupConfig::beta1, "with the momentum of optimizer.muon_momentum_first and _last"},
    {"beta2", &GroupConfig::beta2, "with optimizer.normuon_beta"},
    {"decay", &GroupConfig::decay, "with optimizer.muon_decay"},
};

/// A line for a key of a group that has no effect on the tensors for which `unread(parameter)` holds, if there are any.
template <class Predicate>
void warn_of_key(std::vector<std::string>& warnings, const Config& config, const ParameterTable& table, int i,
                 const char* key, const std::string& value, const char* in_place, const Predicate& unread) {
  const Unfit unfit = unfit_tensors(config, table, config.group[i], unread);
  if (unfit.count == 0) return;
  const std::string path = fmt::format("group.{}.{}", i, key);
  warnings.push_back(fmt::format("warning: {}{} = {} is Adam's: {} updates {} {}{}", where_set(config, {path}), path,
                                 value, traits_of(rule_of(config, unfit.first->group)).title, unfit.first->name,
                                 in_place, unfit.others("likewise")));
}

/// Keys of a group without effect where Muon updates its tensors. Those with their defaults stand in every resolved
/// deck, so they are passed over.
void warn_of_adams_keys(std::vector<std::string>& warnings, const Config& config, const ParameterTable& table, int i) {
  const GroupConfig &group = config.group[i], defaults{};
  const auto by_muon = [&](const Parameter& p) { return rule_of(config, p.group) == Rule::muon; };
  for (const auto& [key, value, of_muon] : adams_numbers) {
    if (group.*value == defaults.*value) continue;
    warn_of_key(warnings, config, table, i, key, fmt::format("{}", group.*value), of_muon, by_muon);
  }
  const auto in_fp32 = [&](const Parameter& p) { return !takes_master_format(config, p.group); };
  if (group.master == GroupFormat::bf16)
    warn_of_key(warnings, config, table, i, "master", "\"bf16\"", "in fp32", in_fp32);
}

}  // namespace

std::vector<std::string> group_warnings(const Config& config, const ParameterTable& table) {
  std::vector<std::string> warnings;
  for (int i = 0; i < static_cast<int>(config.group.size()); ++i) {
    warn_of_adams_keys(warnings, config, table, i);
    for (const std::string& pattern : config.group[i].tensors) {
      const auto named = [&](const Parameter& parameter) { return matches(pattern, parameter.name); };
      if (std::ranges::any_of(table.parameters(), named)) continue;
      const std::string key = fmt::format("group.{}.tensors", i);
      warnings.push_back(
          fmt::format("warning: {}{}: no tensor of the model is called {}", where_set(config, {key}), key, pattern));
    }
  }
  return warnings;
}

}  // namespace nanorun
