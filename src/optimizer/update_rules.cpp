#include "src/optimizer/update_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/config/schedule.hpp"

namespace nanorun {

namespace {

/// The rate of [optimizer] for a group.
double group_lr(const OptimizerConfig& o, Group group) {
  switch (group) {
    case Group::matrix:
      return o.muon_lr;
    case Group::embedding:
      return o.lr_embedding;
    case Group::head:
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

bool matches(const std::string& pattern, const std::string& name) {
  // The last star met takes one character more whenever the rest does not fit.
  std::size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
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

}  // namespace

UpdateRule update_rule(const Config& config, const Parameter& parameter) {
  const OptimizerConfig& o = config.optimizer;
  UpdateRule rule{group_lr(o, parameter.group), o.adam_beta1, o.adam_beta2};
  if (const GroupConfig* const named = group_of(config, parameter.name)) {
    rule = {named->lr, named->beta1, named->beta2, named->decay};
  }
  if (parameter.group == Group::matrix) {
    rule.decay = o.muon_decay;
    rule.truncates = o.muon_truncates;
    return rule;
  }
  // One parameter has one format.
  const bool tied = config.model.tied_head && config.train.untie_step >= 0 && parameter.name == "embedding";
  const GroupConfig* const formats = group_of(config, tied ? "head" : parameter.name);
  rule.master = formats != nullptr ? formats->master : o.adam_master;
  rule.moments = formats != nullptr ? formats->moments : o.adam_moments;
  return rule;
}

kernels::AdamOptions adam_options(const Config& config, const UpdateRule& rule, long step) {
  const double lr = rule.lr * lr_factor(config, step);
  return {.lr = lr,
          .beta1 = rule.beta1,
          .beta2 = rule.beta2,
          .eps = config.optimizer.adam_eps,
          .t = (step + 1) / config.optimizer.adam_period,
          .gradient_scale = 1.0 / config.train.sequences,
          .decay = lr * lr * rule.decay,
          .epsilon_hat = config.optimizer.adam_epsilon_hat,
          .round_weights = rule.master == StateFormat::bf16,
          .round_moments = rule.moments == StateFormat::bf16,
          .clears_gradient = true};
}

std::vector<std::string> group_warnings(const Config& config, const ParameterTable& table) {
  std::vector<std::string> warnings;
  for (std::size_t i = 0; i < config.group.size(); ++i) {
    const GroupConfig& group = config.group[i];
    const bool rounds = group.master != StateFormat::fp32 || group.moments != StateFormat::fp32;
    const auto muons = std::ranges::find_if(table.parameters(), [&](const Parameter& parameter) {
      return parameter.group == Group::matrix && group_of(config, parameter.name) == &group;
    });
    if (rounds && muons != table.parameters().end()) {
      warnings.push_back(
          fmt::format("warning: group.{}: master and moments are Adam's; Muon updates {} in fp32", i, muons->name));
    }
    for (const std::string& pattern : group.tensors) {
      const auto named = [&](const Parameter& parameter) { return matches(pattern, parameter.name); };
      if (std::ranges::any_of(table.parameters(), named)) continue;
      warnings.push_back(fmt::format("warning: group.{}.tensors: no tensor of the model is called {}", i, pattern));
    }
  }
  return warnings;
}

int muon_block_rows(const Config& config, const Parameter& parameter, int matrix) {
  const int heads = config.optimizer.muon_block_heads;
  const bool queries_or_keys = parameter.matrices == 3 && matrix < 2;
  return queries_or_keys && heads > 0 ? heads * config.model.head_dim : parameter.rows;
}

}  // namespace nanorun
